import logging

import numpy as np
import pytest

from sot_base.errors import UsageError
from sot_text.formats.class_names import check_labels
from sot_text.labels import class_indices, class_sets, labels_of, parse_labels, regression_targets
from sot_text.tsv import TsvTable


def table(*cells: str) -> TsvTable:
    return TsvTable("dev.tsv", {"label": list(cells)}, range(2, 2 + len(cells)), [])


@pytest.mark.parametrize("cells", [("b", "a", "a", "a"), ("a", "b", "b", "b"), (" b", "a ")])
def test_order_of_labels_does_not_depend_on_frequency_or_place(cells):
    assert labels_of(table(*cells), "label") == ("a", "b")


def test_whole_numbers_sort_as_numbers():
    assert labels_of(table("10", "2", "-1", "0"), "label") == ("-1", "0", "2", "10")
    assert labels_of(table("10", "2", "x"), "label") == ("10", "2", "x")


def test_class_indices_by_name():
    labels = ("entailment", "not_entailment")
    cells = ("not_entailment", "Entailment", "NOT_ENTAILMENT", " entailment ")
    np.testing.assert_array_equal(class_indices(table(*cells), "label", labels), [1, 0, 1, 0])
    np.testing.assert_array_equal(class_indices(table(*cells), "label", labels[::-1]), [0, 1, 0, 1])


def test_case_counts_where_it_tells_labels_apart(caplog):
    labels = check_labels(["Yes", "no", "yes"], "train.tsv")
    assert "differ only in case" in caplog.text
    np.testing.assert_array_equal(class_indices(table("yes", "Yes", "NO"), "label", labels), [2, 0, 1])
    with pytest.raises(UsageError, match=r"unknown label 'YES': dev.tsv line 2"):
        class_indices(table("YES"), "label", labels)


def test_unambiguous_labels_are_no_warning(caplog):
    with caplog.at_level(logging.WARNING):
        check_labels(["yes", "no"], "train.tsv")
    assert not caplog.records


def test_absent_label_names_line():
    with pytest.raises(UsageError, match=r"no label: dev.tsv line 4, column 'label'; give each sample a label"):
        labels_of(table("a", "b", " ", "b"), "label")


@pytest.mark.parametrize("value", ["maybe", "", "-", "entail"])
def test_unknown_label_names_line_and_value(value):
    with pytest.raises(UsageError) as error:
        class_indices(table("yes", "no", value), "label", ("no", "yes"))
    assert str(error.value) == f"unknown label {value!r}: dev.tsv line 4, column 'label'; use one of no, yes"


@pytest.mark.parametrize(
    "labels,message",
    [
        (["one"], "fewer than two labels"),
        (["a", ""], "'' is not a label"),
        (["a", " b"], "' b' is not a label"),
        (["a", "b\rc"], "is not a label"),
        (["a", "madeupword0001"], "fairseq reserves 'madeupword0001'"),
        (["a", "<unk>"], "fairseq reserves '<unk>'"),
        (["<mask>", "b"], "fairseq reserves '<mask>'"),
        (["a", "b", "a"], "'a' is repeated"),
    ],
)
def test_impossible_labels(labels, message):
    with pytest.raises(UsageError, match=message):
        check_labels(labels, "--labels")


def test_regression_targets_are_kept_as_they_are():
    targets = regression_targets(table("0", "5.000", "2.4", " 3.25 ", "1e-1"), "label", (0.0, 5.0))
    assert targets.tolist() == [0.0, 5.0, 2.4, 3.25, 0.1]
    assert regression_targets(table("-7", "1e9"), "label").tolist() == [-7.0, 1e9]


@pytest.mark.parametrize("value", ["3,5", "", "high", "nan", "inf", "1_0", "0x1"])
def test_not_a_number_names_line_and_value(value):
    with pytest.raises(
        UsageError, match=r"is not a number: dev.tsv line 3, column 'label'; write it like 3.5"
    ) as error:
        regression_targets(table("1", value), "label", (0.0, 5.0))
    assert repr(value) in str(error.value)


@pytest.mark.parametrize("value", ["5.3", "-0.1"])
def test_number_outside_the_range(value):
    with pytest.raises(UsageError, match=f"{value} is not between 0 and 5: dev.tsv line 2"):
        regression_targets(table(value), "label", (0.0, 5.0))


class TestUnicode:
    def test_composed_and_decomposed_letters_are_one_label(self):
        assert labels_of(table("caf\u00e9", "bar", "cafe\u0301"), "label") == ("bar", "caf\u00e9")
        np.testing.assert_array_equal(class_indices(table("cafe\u0301", "BAR"), "label", ("bar", "caf\u00e9")), [1, 0])
        np.testing.assert_array_equal(class_indices(table("caf\u00e9"), "label", ("bar", "cafe\u0301")), [1])
        assert check_labels(["cafe\u0301", "bar"], "--labels") == ("caf\u00e9", "bar")
        with pytest.raises(UsageError, match="'café' is repeated"):
            check_labels(["cafe\u0301", "caf\u00e9"], "--labels")

    def test_a_label_that_looks_like_another(self):
        with pytest.raises(UsageError) as error:
            labels_of(table("neg", "pos", "pos\u200b"), "label")
        assert str(error.value) == (
            "'pos\\u200b' (U+200B ZERO WIDTH SPACE) looks like 'pos' and is another label: dev.tsv line 4, column "
            "'label'; remove the invisible characters"
        )

    @pytest.mark.parametrize("space", ["\u200b", "\ufeff", "\u00ad"])
    def test_an_unknown_label_that_looks_like_a_known_one(self, space):
        with pytest.raises(UsageError) as error:
            class_indices(table("neg", f"po{space}s"), "label", ("neg", "pos"))
        message = str(error.value)
        assert message.startswith(f"unknown label {f'po{space}s'!r} (U+{ord(space):04X} ")
        assert message.endswith("line 3, column 'label'; it looks like 'pos': remove the invisible characters")

    def test_invisible_characters_that_tell_nothing_apart_stay(self):
        persian = "\u0645\u06cc\u200c\u062e"  # with a zero-width non-joiner, as its spelling wants it
        assert labels_of(table("a", persian), "label") == ("a", persian)


class TestNumbers:
    def test_scores_ask_for_regression(self):
        with pytest.raises(UsageError) as error:
            labels_of(table("0.0", "0.25", "5.0", "3"), "label")
        assert str(error.value) == (
            "the 4 labels are numbers from 0 to 5: dev.tsv, column 'label'; did you mean --regression? If they are "
            "names of classes, list them with --labels"
        )

    def test_whole_numbers_with_a_point_are_classes_with_a_question(self, caplog):
        assert labels_of(table("10.0", "2.0", "1.0"), "label") == ("1.0", "2.0", "10.0")
        assert "did you mean --regression?" in caplog.text

    @pytest.mark.parametrize("cells", [("1", "2"), ("-1", "+1"), ("1.5", "x"), ("v1.0", "v1.5")])
    def test_names_are_no_question(self, cells, caplog):
        labels_of(table(*cells), "label")
        assert not caplog.records


class TestSeveralLabels:
    def test_sets(self):
        rows = table("a,b", "", " ", 'B,"c, d"', "a")
        labels = labels_of(rows, "label", multi_label=True)
        assert labels == ("B", "a", "b", "c, d")
        sets = class_sets(rows, "label", labels)
        assert sets.tolist() == [[0, 1, 1, 0], [0] * 4, [0] * 4, [1, 0, 0, 1], [0, 1, 0, 0]]

    def test_case_where_it_is_unambiguous(self):
        assert class_sets(table("A, b"), "label", ("a", "B")).tolist() == [[True, True]]

    @pytest.mark.parametrize(
        "cell, message",
        [
            ("a,x", "unknown label 'x': dev.tsv line 2, column 'label'; use one of a, b"),
            ("a,,b", "an empty name in 'a,,b': dev.tsv line 2, column 'label'"),
            ('"a', 'a quotation mark is not closed in "a: dev.tsv line 2'),
        ],
    )
    def test_mistakes(self, cell, message):
        with pytest.raises(UsageError, match=message):
            class_sets(table(cell), "label", ("a", "b"))

    def test_whole_numbers_are_names(self, caplog):
        assert labels_of(table("10,2", "0.5"), "label", multi_label=True) == ("0.5", "2", "10")
        assert not caplog.records


def test_a_list_of_labels_with_a_comma_in_a_name():
    assert parse_labels('no, "yes, really"') == ("no", "yes, really")
    with pytest.raises(UsageError, match=r"fewer than two labels .*: --labels"):
        parse_labels('"yes, really"')
