import json

import pytest
from fairseq.data import Dictionary

from sot_base.errors import UsageError
from sot_text.formats.dictionary import read_dictionary, write_dictionary
from sot_text.formats.wordpiece import (
    WordPieceSettings,
    build_tokenizer,
    fairseq_order,
    read_settings,
    read_vocab,
    write_dict,
)

UNCASED = ["[PAD]", "[unused0]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "!", "a", "##b", "é"]
CASED = [*UNCASED, "The"]


def save(folder, vocab, end="\n"):
    path = folder / "vocab.txt"
    path.write_bytes("".join(piece + end for piece in vocab).encode())
    return path


def test_fairseq_order_is_the_order_that_fairseq_loads(tmp_path):
    write_dict(UNCASED, tmp_path / "dict.txt")
    dictionary = Dictionary.load(str(tmp_path / "dict.txt"))
    dictionary.add_symbol("<mask>")  # as the sentence_prediction task does
    names = {"<s>": "[CLS]", "<pad>": "[PAD]", "</s>": "[SEP]", "<unk>": "[UNK]", "<mask>": "[MASK]"}
    assert [UNCASED[row] for row in fairseq_order(UNCASED)] == [names.get(token, token) for token in dictionary.symbols]


def test_fairseq_order_is_a_permutation():
    assert sorted(fairseq_order(CASED)) == list(range(len(CASED)))


@pytest.mark.parametrize("end", ["\n", "\r\n"])
def test_read_vocab(tmp_path, end):
    assert read_vocab(save(tmp_path, UNCASED, end)) == UNCASED
    path = tmp_path / "vocab.txt"
    path.write_bytes(path.read_bytes().removesuffix(end.encode()))
    assert read_vocab(path) == UNCASED


def test_odd_entries_keep_their_row(tmp_path):
    odd = [*UNCASED, "\u2028", "a b", " ", "", "\x85"]
    assert read_vocab(save(tmp_path, odd)) == odd
    write_dict(odd, tmp_path / "dict.txt")
    assert Dictionary.load(str(tmp_path / "dict.txt")).symbols[-5:] == odd[-5:]


@pytest.mark.parametrize(
    "vocab,message",
    [
        (UNCASED[1:], r"no \[PAD\] in the vocabulary"),
        ([*UNCASED, "a"], "'a' is repeated: .*vocab.txt lines 8 and 11"),
        ([*UNCASED, "<s>"], "fairseq keeps '<s>' for itself: .* line 11"),
        ([*UNCASED, "<mask>"], "fairseq keeps '<mask>' for itself"),
    ],
)
def test_broken_vocab(tmp_path, vocab, message):
    with pytest.raises(UsageError, match=message):
        read_vocab(save(tmp_path, vocab))


def test_absent_and_binary_vocab(tmp_path):
    with pytest.raises(UsageError, match=r"cannot read vocab.txt"):
        read_vocab(tmp_path / "vocab.txt")
    (tmp_path / "vocab.txt").write_bytes(b"\x80\x02")
    with pytest.raises(UsageError, match="not UTF-8"):
        read_vocab(tmp_path / "vocab.txt")


@pytest.mark.parametrize("vocab,lower_case", [(UNCASED, True), (CASED, False)])
@pytest.mark.parametrize("said", [True, False, None])
@pytest.mark.parametrize("where", ["argument", "file"])
def test_the_vocabulary_decides_the_casing(tmp_path, vocab, lower_case, said, where):
    path = save(tmp_path, vocab)
    if where == "file":
        (tmp_path / "tokenizer_config.json").write_text(json.dumps({"do_lower_case": said}))
    argument = said if where == "argument" else None
    if said is None or said == lower_case:
        assert read_settings(path, vocab, argument) == WordPieceSettings(lower_case)
    else:
        name = "uncased" if lower_case else "cased"
        with pytest.raises(UsageError, match=f"text is asked for, the vocabulary is {name}.*vocab.txt.*say --{name}"):
            read_settings(path, vocab, argument)


def test_command_line_before_file(tmp_path):
    (tmp_path / "tokenizer_config.json").write_text('{"do_lower_case": false}')
    assert read_settings(tmp_path / "vocab.txt", UNCASED, lower_case=True).do_lower_case


@pytest.mark.parametrize("said,expected", [(None, False), (True, True), (False, False)])
def test_vocabulary_without_latin_letters(tmp_path, said, expected):
    assert read_settings(tmp_path / "vocab.txt", [*UNCASED[:6], "1", "语"], said).do_lower_case is expected


@pytest.mark.parametrize("vocab,forced", [(CASED, True), (UNCASED, False)])
def test_lower_case_by_force(tmp_path, vocab, forced):
    """With a cased vocabulary the file remembers it, so that new text is treated alike."""
    path = save(tmp_path, vocab)
    settings = read_settings(path, vocab, force_lower_case=True)
    assert settings == WordPieceSettings(True, force_lower_case=forced)
    assert build_tokenizer(vocab, settings).normalizer.normalize_str("ÀB") == "ab"
    settings.save(tmp_path)
    assert ("force_lower_case" in (tmp_path / "tokenizer_config.json").read_text()) is forced
    assert read_settings(path, vocab) == settings


def test_settings_round_trip(tmp_path):
    settings = WordPieceSettings(True, strip_accents=False, tokenize_chinese_chars=False)
    settings.save(tmp_path)
    assert read_settings(tmp_path / "vocab.txt", UNCASED) == settings


@pytest.mark.parametrize(
    "content,problem",
    [
        ("{", "not a JSON file"),
        ("[]", "expected object, got array"),
        ('{"do_lower_case": "yes"}', "do_lower_case: expected bool"),
    ],
)
def test_broken_config(tmp_path, content, problem):
    (tmp_path / "tokenizer_config.json").write_text(content)
    with pytest.raises(UsageError, match=rf"{problem}.*tokenizer_config.json"):
        read_settings(tmp_path / "vocab.txt", UNCASED)


def test_dictionary_round_trip_is_that_of_fairseq(tmp_path):
    ours, theirs = tmp_path / "ours.txt", tmp_path / "theirs.txt"
    ours.write_bytes("13 850\r\na b 3\n\u2028 0\n 7\nx 1".encode())
    entries = read_dictionary(ours)
    dictionary = Dictionary.load(str(ours))
    assert entries == list(zip(dictionary.symbols[4:], dictionary.count[4:], strict=True))
    dictionary.save(str(theirs))
    write_dictionary(ours, entries)
    assert ours.read_bytes() == theirs.read_bytes()


@pytest.mark.parametrize(
    "content,message",
    [
        ("a 1\nb\n", "not '<token> <count>': .* line 2"),
        ("5\n", "not '<token> <count>': .* line 1"),
        ("a one\n", "not '<token> <count>': .* line 1"),
        ("a 1\nb 2\na 3\n", "'a' is repeated: .* line 3"),
        ("<pad> 1\n", "'<pad>' is repeated: .* line 1"),
    ],
)
def test_broken_dictionary(tmp_path, content, message):
    path = tmp_path / "dict.txt"
    path.write_text(content)
    with pytest.raises(UsageError, match=message):
        read_dictionary(path)
