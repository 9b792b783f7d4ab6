import pytest

from sot_base.errors import UsageError
from sot_base.names import join_names, name_key, show, split_names, visible


@pytest.mark.parametrize(
    "text, names",
    [
        ("a,b", ["a", "b"]),
        (" a , b c ", ["a", "b c"]),
        ('no, "yes, really"', ["no", "yes, really"]),
        ('"say ""no""",5"', ['say "no"', '5"']),
        ('"a, b"=4,c=1', ["a, b=4", "c=1"]),
        ("a,,b", ["a", "", "b"]),
    ],
)
def test_splitting(text, names):
    assert split_names(text, "--labels") == names


@pytest.mark.parametrize("text", ['"a,b', 'a,"b', '"a""', '"a"=1,"b'])
def test_an_open_quotation_mark(text):
    with pytest.raises(UsageError, match=r"a quotation mark is not closed in .*: --labels; a quoted name needs"):
        split_names(text, "--labels")


@pytest.mark.parametrize("names", [[], ["a"], ["a", "b, c"], ['say "no"', "5'"], ["café", "a b"]])
def test_joining_is_the_reverse(names):
    assert split_names(join_names(names), "") == (names or [""])


def test_spellings_of_a_name():
    assert name_key("Cafe\u0301") == name_key("CAF\u00c9") == name_key("café")
    assert name_key("cafe") != name_key("café")
    assert visible("e\u0301\u200bs\ufeff\u00a0x") == "\u00e9s x"


@pytest.mark.parametrize(
    "name, shown",
    [
        ("yes", "'yes'"),
        ("pos\u200b", r"'pos\u200b' (U+200B ZERO WIDTH SPACE)"),
        ("caf\u00e9\u00ad", r"'café\xad' (U+00AD SOFT HYPHEN)"),
        ("p\u0430ss", "'p\u0430ss' (U+0430 CYRILLIC SMALL LETTER A)"),
        ("a\tb", r"'a\tb' (U+0009)"),
    ],
)
def test_look_alikes_are_told_apart(name, shown):
    assert show(name) == shown
