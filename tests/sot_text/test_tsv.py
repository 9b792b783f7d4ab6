import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from sot_base.errors import UsageError
from sot_text import tsv
from sot_text.tsv import read_tsv


@pytest.fixture(autouse=True, params=["whole", "blocks"])
def _size_of_blocks(request, monkeypatch):
    if request.param == "blocks":
        monkeypatch.setattr(tsv, "BLOCK", 3)


@pytest.fixture
def write(tmp_path):
    def write(content: str | bytes):
        path = tmp_path / "train.tsv"
        path.write_bytes(content if isinstance(content, bytes) else content.encode("utf-8"))
        return path

    return write


def test_columns_by_name(write):
    table = read_tsv(write("index\tb\ta\n0\tx\ty\n1\tz\tw\n"), ["a", "b"])
    assert table.columns == {"a": ["y", "w"], "b": ["x", "z"]}
    assert list(table.lines) == [2, 3]
    assert len(table) == 2
    assert table.skipped == []


def test_one_column(write):
    assert read_tsv(write("text\nhello\n\nworld"), ["text"]).columns == {"text": ["hello", "", "world"]}


def test_file_without_a_header(write):
    table = read_tsv(
        write("gj04\t1\t\tA dog.\n"), ["sentence", "label"], header=["source", "label", "mark", "sentence"]
    )
    assert table.columns == {"sentence": ["A dog."], "label": ["1"]}
    assert list(table.lines) == [1]


@pytest.mark.parametrize("end", ["", "\n", "\r\n"])
def test_line_ends(write, end):
    unix = read_tsv(write("a\tb\n1\t2\n3\t4" + end.replace("\r", "")), ["a", "b"])
    windows = read_tsv(write("a\tb\r\n1\t2\r\n3\t4" + end), ["a", "b"])
    assert unix.columns == windows.columns == {"a": ["1", "3"], "b": ["2", "4"]}


def test_byte_order_mark_is_skipped(write):
    assert read_tsv(write(b"\xef\xbb\xbfQuality\tx\n1\t2\n"), ["Quality"]).columns == {"Quality": ["1"]}


def test_quotes_and_null_words_are_plain_text(write):
    texts = ['"unbalanced', 'un"balanced', '""', "NA", "null", "NaN", "None", "", "#"]
    path = write("text\tlabel\n" + "".join(f"{text}\t1\n" for text in texts))
    assert read_tsv(path, ["text"]).columns == {"text": texts}


def test_only_line_feeds_end_a_row(write):
    text = "a\x0bb\x0cc\x1cd\x1de\x1ef\x85g\u2028h\u2029i\rj\x00k"
    assert read_tsv(write(f"text\tlabel\n{text}\t1\n"), ["text", "label"]).columns == {"text": [text], "label": ["1"]}


@settings(derandomize=True, max_examples=50, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(st.text(st.characters(exclude_characters="\t\n", codec="utf-8")), min_size=1))
def test_rows_are_lines(tmp_path_factory, texts):
    path = tmp_path_factory.mktemp("tsv") / "train.tsv"
    path.write_bytes("".join(f"{text}\t1\n" for text in ["text", *texts]).encode())
    assert read_tsv(path, ["text"]).columns["text"] == texts


def test_optional_columns(write):
    assert "label" not in read_tsv(write("text\nx\n"), ["text"], optional=["label"]).columns
    assert read_tsv(write("text\tlabel\nx\t1\n"), ["text"], optional=["label"]).columns["label"] == ["1"]


@pytest.mark.parametrize(
    "content,message",
    [
        ("a\tb\n1\t2\n3\n", "1 field where 2 are expected: {path} line 3; give each of a, b"),
        ("a\tb\n1\t2\t3\n", "3 fields where 2 are expected: {path} line 2;"),
        ("a\tb\n1\t2\n\n3\t4\n", "1 field where 2 are expected: {path} line 3;"),
        ("a\tc\n1\t2\n", "no column 'b': {path} line 1 has a, c;"),
        ("a\tb\tb\n1\t2\t3\n", "more than one column 'b': {path} line 1 has a, b, b;"),
        ("", "no column 'a': {path} line 1 has nothing;"),
        ("a\tb\n", "no rows: {path};"),
        (b"a\tb\n1\t2\n3\t\xff4\n", "not UTF-8 (byte 0xff, place 3): {path} line 3;"),
        ("a\tb\n1\t2\n".encode("utf-16"), "not UTF-8 (byte 0xff, place 1): {path} line 1;"),
    ],
)
def test_malformed_files_name_the_line(write, content, message):
    path = write(content)
    with pytest.raises(UsageError) as error:
        read_tsv(path, ["a", "b"])
    assert str(error.value).startswith(message.format(path=path))


def test_absent_file(tmp_path):
    with pytest.raises(UsageError, match=r"cannot read the file \(No such file or directory\): .*none.tsv"):
        read_tsv(tmp_path / "none.tsv", ["a"])


def test_skipped_rows_are_listed_and_lines_stay_right(write):
    table = read_tsv(write("a\tb\n1\t2\nbroken\n3\t4\nx\ty\tz\n"), ["a"], skip_malformed=True)
    assert table.columns == {"a": ["1", "3"]}
    assert (list(table.lines), table.skipped) == ([2, 4], [3, 5])
    assert table.where(1, "a") == f"{table.path} line 4, column 'a'"
