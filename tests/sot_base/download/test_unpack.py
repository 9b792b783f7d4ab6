"""Archives: what comes out of good ones, and that bad ones leave nothing inside or outside the folder."""

import gzip
import io
import stat
import tarfile
import zipfile

import pytest

from sot_base.download.unpack import ALWAYS, unpack
from sot_base.errors import UsageError


@pytest.fixture
def tar(tmp_path):
    """Write a tar.gz of (name, content) pairs; content is bytes, or fields of the TarInfo."""

    def write(*members):
        path = tmp_path / "in" / "archive.tar.gz"
        path.parent.mkdir(exist_ok=True)
        with tarfile.open(path, "w:gz") as archive:
            for name, content in members:
                info = tarfile.TarInfo(name)
                if isinstance(content, bytes):
                    info.size = len(content)
                    archive.addfile(info, io.BytesIO(content))
                else:
                    for field, value in content.items():
                        setattr(info, field, value)
                    archive.addfile(info)
        return path

    return write


@pytest.fixture
def zipped(tmp_path):
    def write(*members):
        path = tmp_path / "in" / "archive.zip"
        path.parent.mkdir(exist_ok=True)
        with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
            for name, content in members:
                archive.writestr(name, content)
        return path

    return write


def contents(folder):
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def refused(archive, message, **options):
    folder = archive.parents[1] / "out" / "folder"
    before = contents(archive.parents[1])
    with pytest.raises(UsageError, match=message) as error:
        unpack(archive, folder, **options)
    assert f": {archive}; remove it and download it again" in str(error.value)
    assert contents(archive.parents[1]) == before
    assert not list(archive.parents[1].glob("out/*"))
    assert not list(archive.parents[1].glob("out/.*"))


FILES = (("model/model.pt", b"weights" * 1000), ("model/dict.txt", b"13 7\n"))


def test_whole_archives(tmp_path, tar, zipped):
    wanted = {name: content for name, content in FILES}
    folder = ("model", {"type": tarfile.DIRTYPE, "mode": 0o777})
    assert contents(unpack(tar(folder, *FILES), tmp_path / "a")) == wanted
    assert contents(unpack(zipped(("model/", b""), *FILES), tmp_path / "b")) == wanted
    assert {stat.S_IMODE(path.stat().st_mode) & 0o133 for path in (tmp_path / "a").rglob("*.*")} == {0}


def test_chosen_members_go_into_the_folder(tmp_path, tar, zipped):
    deep = ("./model/old/dict.txt", b"old")
    for archive in (tar(deep, *FILES), tar(*FILES, deep), zipped(deep, *FILES), zipped(*FILES, deep)):
        assert contents(unpack(archive, tmp_path / "out", ["dict.txt"])) == {"dict.txt": b"13 7\n"}


def test_a_folder_is_replaced(tmp_path, tar):
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "old").write_text("old")
    assert set(contents(unpack(tar(*FILES), tmp_path / "out", ["model.pt"]))) == {"model.pt"}


@pytest.mark.parametrize("name", ["../evil", "model/../../evil", "/evil", "..", "model\\..\\..\\evil"])
def test_paths_outside(tmp_path, tar, zipped, name):
    refused(tar(*FILES, (name, b"x")), "a path outside of it")
    refused(tar((name, b"x"), *FILES), "a path outside of it", members=["dict.txt"])
    refused(zipped(*FILES, (name, b"x")), "a path outside of it")
    assert not list(tmp_path.parent.glob("**/evil"))


@pytest.mark.parametrize(
    "fields",
    [
        {"type": tarfile.SYMTYPE, "linkname": "/etc/passwd"},
        {"type": tarfile.SYMTYPE, "linkname": "model.pt"},
        {"type": tarfile.LNKTYPE, "linkname": "model/model.pt"},
        {"type": tarfile.FIFOTYPE},
        {"type": tarfile.CHRTYPE},
        {"type": tarfile.BLKTYPE},
    ],
)
def test_links_and_devices(tar, fields):
    refused(tar(*FILES, ("model/odd", fields)), "a link or device, model/odd")
    refused(tar(*FILES, ("model/odd", fields)), "a link or device, model/odd", members=["dict.txt"])


def test_links_in_a_zip(zipped):
    link = zipfile.ZipInfo("model/odd")
    link.external_attr = (stat.S_IFLNK | 0o777) << 16
    refused(zipped(*FILES, (link, "/etc/passwd")), "a link or device, model/odd")


@pytest.mark.parametrize("kept", [0, 1, 0.3, 0.6, -1, -8])
def test_cut_off(tar, zipped, kept):
    for archive in (tar(*FILES), zipped(*FILES)):
        body = archive.read_bytes()
        end = int(len(body) * kept) if isinstance(kept, float) else kept
        archive.write_bytes(body[:end])
        refused(archive, "cut off or damaged")
        archive.unlink()


def test_flipped_byte(tar, zipped):
    for archive in (tar(*FILES), zipped(*FILES)):
        body = bytearray(archive.read_bytes())
        body[60] ^= 255
        archive.write_bytes(body)
        refused(archive, "cut off or damaged")
        archive.unlink()


def test_no_archive_at_all(tmp_path):
    path = tmp_path / "in" / "page.tar.gz"
    path.parent.mkdir()
    path.write_text("<html>not here</html>")
    refused(path, "cut off or damaged")


def test_missing_and_doubled_members(tar):
    refused(tar(*FILES), "without vocab.txt, config.json", members=["dict.txt", "vocab.txt", "config.json"])
    refused(tar(*FILES, ("other/dict.txt", b"")), "two files named dict.txt", members=["dict.txt"])


def test_absent_archive(tmp_path):
    for path in (tmp_path / "no.zip", tmp_path):
        with pytest.raises(UsageError, match=f"not a usable archive, no file: {path}"):
            unpack(path, tmp_path / "out")


def test_what_is_far_larger_unpacked_takes_no_room(tar, zipped):
    zeros = ("zeros", bytes(2 * ALWAYS))
    for archive in (tar(zeros), zipped(zeros)):
        assert archive.stat().st_size < ALWAYS / 100
        refused(archive, "more than 100 times as large unpacked|a file that ends at byte")
        refused(archive, "more than 100 times as large unpacked|a file that ends at byte", members=["other"])
        archive.unlink()


@pytest.mark.parametrize("size", [2**33, 2**63, 2**88 - 1])
def test_a_member_that_says_it_is_large(tmp_path, size):
    path = tmp_path / "in" / "archive.tar"
    path.parent.mkdir()
    info = tarfile.TarInfo("large")
    info.size = size
    path.write_bytes(info.tobuf(tarfile.GNU_FORMAT) + bytes(2 * 512))
    refused(path, "more than 100 times as large unpacked|cut off or damaged")


@pytest.mark.parametrize("kind", [tarfile.GNUTYPE_LONGNAME, tarfile.XHDTYPE, tarfile.XGLTYPE])
def test_a_header_that_takes_memory(tmp_path, kind):
    path = tmp_path / "in" / "archive.tar.gz"
    path.parent.mkdir()
    info = tarfile.TarInfo("name")
    info.type, info.size = kind, 2**31
    path.write_bytes(gzip.compress(info.tobuf(tarfile.GNU_FORMAT) + bytes(2**20)))
    refused(path, r"cut off or damaged \(a header of \d+ bytes\)")


@pytest.mark.parametrize("suffix", ["bz2", "xz", "gz", ""])
def test_every_compression_and_its_damages(tmp_path, suffix):
    path = tmp_path / "in" / f"archive.tar.{suffix}"
    path.parent.mkdir()
    with tarfile.open(path, f"w:{suffix}") as archive:
        for name, content in FILES:
            info = tarfile.TarInfo(name)
            info.size = len(content)
            archive.addfile(info, io.BytesIO(content))
    assert contents(unpack(path, tmp_path / "good"))
    body = path.read_bytes()
    path.write_bytes(body[: len(body) // 2])
    refused(path, "not a usable archive")
    path.write_bytes(body[:30] + bytes([body[30] ^ 255]) + body[31:])
    refused(path, "not a usable archive")


@pytest.mark.parametrize("names", [("a", "a/b"), ("a/b", "a"), ("n" * 300,), ("d" * 200 + "/" + "e" * 256,)])
def test_names_that_cannot_be_together_or_at_all(zipped, names):
    archive = zipped(*((name, b"x") for name in names))
    refused(archive, "a file and a folder of one name|a name that no file can have|cut off or damaged|two files named")
