"""GLUE's archives become the folders that the task table describes."""

import io
import zipfile
from dataclasses import replace

import pytest

from sot_base.errors import UsageError
from sot_text.glue import GLUE_TASKS
from sot_text.glue_files import GLUE_FILES, download_glue, missing_files
from sot_text.tsv import read_tsv
from tests.sot_base.file_server import serve
from tests.support import need_shared

OTHER_NAMES = {"QNLI": "QNLIv2.zip", "QQP": "QQP-clean.zip"}


@pytest.fixture
def server(monkeypatch):
    """GLUE's host; the files are not the published ones, so that their checksums are left out."""
    for name in ("SOT_OFFLINE", "HF_HUB_OFFLINE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    for name, remotes in GLUE_FILES.items():
        monkeypatch.setitem(GLUE_FILES, name, tuple(replace(remote, sha256=None, size=None) for remote in remotes))
    with serve() as server:
        monkeypatch.setenv("SOT_MIRROR", server.address)
        yield server


def lines(split, rows=1):
    """A file of a split as GLUE has it: a header, unless it has none, and rows."""
    columns = list(split.header or ("index", *split.text_columns, *(() if split.is_test else (split.label_column,))))
    header = [] if split.header else ["\t".join(columns)]
    return "\n".join([*header, *["\t".join(f"{column} {row}" for column in columns) for row in range(rows)], ""])


def zipped(folder, files):
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        for name, text in files.items():
            archive.writestr(f"{folder}/{name}", text)
            archive.writestr(f"__MACOSX/{folder}/._{name}", "resource fork")
            archive.writestr(f"{folder}/original/{name}", "another file")
    return buffer.getvalue()


def put(server, name, files=None):
    task = GLUE_TASKS[name]
    files = files or {split.file: lines(split) for split in task.splits}
    server.files[f"/glue/data/{OTHER_NAMES.get(name, f'{name}.zip')}"] = zipped(name, files)
    return files


@pytest.mark.parametrize("name", [name for name in GLUE_TASKS if name != "MRPC"])
def test_every_archive(server, tmp_path, name):
    files = put(server, name)
    folder = download_glue(name.lower(), tmp_path / "glue data")
    assert folder == tmp_path / "glue data" / name
    assert {path.name: path.read_text() for path in folder.iterdir()} == files
    assert [path.name for path in (tmp_path / "glue data").iterdir()] == [name]
    for split in GLUE_TASKS[name].splits:
        columns = split.text_columns if split.is_test else (*split.text_columns, split.label_column)
        assert len(read_tsv(folder / split.file, columns, split.header)) == 1


def test_rte_as_published(server, tmp_path):
    published = need_shared("data", "glue", "RTE")
    files = {file: (published / file).read_text(encoding="utf-8") for file in ("train.tsv", "dev.tsv")}
    put(server, "RTE", files | {"test.tsv": "index\tsentence1\tsentence2\n0\ta\tb\n"})
    folder = download_glue("RTE", tmp_path)
    table = read_tsv(folder / "dev.tsv", ["sentence1", "sentence2", "label"])
    assert len(table) == 277
    assert set(table.columns["label"]) == {"entailment", "not_entailment"}


def test_complete_folder_is_left_alone(server, tmp_path):
    put(server, "RTE")
    download_glue("RTE", tmp_path)
    assert len(server.log) == 1
    (tmp_path / "RTE" / "dev.tsv").write_text("index\tsentence1\tsentence2\tlabel\tmine\n")
    download_glue("RTE", tmp_path)
    assert len(server.log) == 1
    assert "mine" in (tmp_path / "RTE" / "dev.tsv").read_text()
    download_glue("RTE", tmp_path, force=True)
    assert len(server.log) == 2
    assert "mine" not in (tmp_path / "RTE" / "dev.tsv").read_text()


@pytest.mark.parametrize("broken", [None, "", "<html>log in first</html>"])
def test_missing_and_broken_files_are_replaced(server, tmp_path, broken):
    files = put(server, "CoLA")
    folder = tmp_path / "CoLA"
    folder.mkdir()
    (folder / "train.tsv").write_text("own\t1\t\tSentence.\n")
    (folder / "notes.txt").write_text("kept")
    if broken is not None:
        (folder / "dev.tsv").write_text(broken)
    assert missing_files(GLUE_TASKS["CoLA"], folder) == ["dev.tsv", "test.tsv"]
    download_glue("CoLA", tmp_path)
    texts = {path.name: path.read_text() for path in folder.iterdir()}
    assert texts == files | {"train.tsv": "own\t1\t\tSentence.\n", "notes.txt": "kept"}


def test_archive_of_other_files_is_refused(server, tmp_path):
    put(server, "RTE", {"train.tsv": "a\tb\n", "dev.tsv": "a\n", "test.tsv": "a\n"})
    with pytest.raises(UsageError, match=r"no file of RTE, its columns are missing: .*RTE.zip \(train.tsv\)"):
        download_glue("RTE", tmp_path)
    assert not (tmp_path / "RTE").exists()


def test_archive_with_another_checksum_is_refused(server, tmp_path, monkeypatch):
    put(server, "RTE")
    (remote,) = GLUE_FILES["RTE"]
    monkeypatch.setitem(GLUE_FILES, "RTE", (replace(remote, sha256="0" * 64),))
    with pytest.raises(UsageError, match=f"sha256 expected {'0' * 64}, got "):
        download_glue("RTE", tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_wrong_archive_put_by_hand(server, tmp_path, monkeypatch):
    put(server, "RTE")
    (remote,) = GLUE_FILES["RTE"]
    monkeypatch.setitem(GLUE_FILES, "RTE", (replace(remote, size=len(server.files["/glue/data/RTE.zip"])),))
    (tmp_path / "RTE.zip").write_text("<html>log in first</html>")
    with pytest.raises(UsageError, match=r"size expected \d+, got 25.: .*RTE.zip; remove it to download it again"):
        download_glue("RTE", tmp_path)
    assert download_glue("RTE", tmp_path, force=True) == tmp_path / "RTE"


def test_unknown_task(tmp_path):
    with pytest.raises(UsageError, match="no such task: 'RTF'"):
        download_glue("RTF", tmp_path)


HEADER = "\ufeffQuality\t#1 ID\t#2 ID\t#1 String\t#2 String\r\n"


@pytest.fixture
def mrpc(server):
    """The paraphrase corpus in its published form: byte order mark, carriage returns, quotation marks as text."""
    folder = "/senteval/senteval_data"
    train = ['1\t10\t11\tA "b\t\u00a3 c', "0\t12\t13\td\te", "1\t14\t15\tf\tg"]
    server.files[f"{folder}/msr_paraphrase_train.txt"] = (HEADER + "\r\n".join(train) + "\r\n").encode()
    server.files[f"{folder}/msr_paraphrase_test.txt"] = (HEADER + "1\t20\t21\th\ti\r\n0\t22\t23\tj\tk").encode()
    server.files["/glue/data/mrpc_dev_ids.tsv"] = b"12\t13\n"
    return server


def test_mrpc(mrpc, tmp_path):
    folder = download_glue("mrpc", tmp_path)
    header = HEADER[1:].replace("\r", "")
    assert {path.name: path.read_text(encoding="utf-8") for path in folder.iterdir()} == {
        "train.tsv": f'{header}1\t10\t11\tA "b\t\u00a3 c\n1\t14\t15\tf\tg\n',
        "dev.tsv": f"{header}0\t12\t13\td\te\n",
        "test.tsv": header.replace("Quality", "index") + "0\t20\t21\th\ti\n1\t22\t23\tj\tk\n",
    }
    assert [path.name for path in tmp_path.iterdir()] == ["MRPC"]
    for split in GLUE_TASKS["MRPC"].splits:
        read_tsv(folder / split.file, split.text_columns)


@pytest.mark.parametrize(
    "file, body, message",
    [
        ("/glue/data/mrpc_dev_ids.tsv", b"12\t14\n", "not ids of msr_paraphrase_train.txt: .*mrpc_dev_ids.tsv .12 14."),
        (
            "/senteval/senteval_data/msr_paraphrase_test.txt",
            HEADER.encode() + b"1\t2\n",
            "2 fields instead of 5.*line 2",
        ),
    ],
)
def test_mrpc_with_other_files(mrpc, tmp_path, file, body, message):
    mrpc.files[file] = body
    with pytest.raises(UsageError, match=message):
        download_glue("MRPC", tmp_path)
    assert not (tmp_path / "MRPC").exists()


def test_every_file_has_its_checksum():
    assert GLUE_FILES.keys() == GLUE_TASKS.keys()
    for remotes in GLUE_FILES.values():
        for remote in remotes:
            assert remote.url.startswith("https://dl.fbaipublicfiles.com/")
            assert len(bytes.fromhex(remote.sha256)) == 32
            assert remote.size > 0
