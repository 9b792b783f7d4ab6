"""Tars: links within them are followed, and members are where they say."""

import io
import tarfile

import pytest

from sot_base.errors import UsageError
from vision.data.tar_tree import TarTree, follow_links


def write_tar(path, members, extra=b""):
    """A tar of files (bytes) and links ("sym" or "hard", and their target)."""
    with tarfile.open(path, "w") as tar:
        for name, content in members.items():
            info = tarfile.TarInfo(name)
            if isinstance(content, bytes):
                info.size = len(content)
                tar.addfile(info, io.BytesIO(content))
            else:
                info.type = {"sym": tarfile.SYMTYPE, "hard": tarfile.LNKTYPE}[content[0]]
                info.linkname = content[1]
                tar.addfile(info)
    return path


LINKED = {
    "./train/cat/1.png": b"one",
    "train/cat/2.png": ("sym", "1.png"),
    "train/cat/3.png": ("hard", "./train/cat/1.png"),
    "train/dog/1.png": ("sym", "../cat/2.png"),  # through a link
    "train/owl": ("sym", "cat"),  # a folder
    "val": ("sym", "train"),  # a folder with links and a linked folder in it
    "train/cat/.hidden.png": ("sym", "/etc/passwd"),
}


def test_links_are_followed(tmp_path):
    tree = TarTree(write_tar(tmp_path / "a.tar", LINKED))
    cat = ["1.png", "2.png", "3.png"]
    expected = [*(f"cat/{name}" for name in cat), "dog/1.png", *(f"owl/{name}" for name in cat)]
    assert tree.files("train") == tree.files("val") == expected
    assert {tree.read(f"val/{path}") for path in expected} == {b"one"}
    assert tree.folders("train") == ["cat", "dog", "owl"]


@pytest.mark.parametrize(
    "link, target",
    [
        (("sym", "/etc/passwd"), "/etc/passwd"),
        (("sym", "../../../etc/passwd"), r"\.\./\.\./etc/passwd"),
        (("sym", "gone.png"), r"cat/gone\.png"),
        (("hard", "cat/gone.png"), r"cat/gone\.png"),
        (("sym", "."), "cat"),  # the folder that it lies in
        (("sym", "2.png"), r"cat/2\.png"),  # itself
    ],
)
def test_other_links_are_refused(tmp_path, link, target):
    path = write_tar(tmp_path / "a.tar", {"cat/1.png": b"one", "cat/2.png": link})
    message = rf"^a link to what is not in the tar: .*a\.tar: cat/2\.png -> {target}; pack the files themselves"
    with pytest.raises(UsageError, match=message):
        TarTree(path)


def test_links_in_a_circle_are_left():
    places, links = {"a/1": (0, 1)}, {"b": "c", "c": "b", "d": "a"}
    follow_links(places, links)
    assert places == {"a/1": (0, 1), "d/1": (0, 1)}
    assert links == {"b": "c", "c": "b"}


def test_the_last_member_of_a_name_counts(tmp_path):
    path = tmp_path / "a.tar"
    with tarfile.open(path, "w") as tar:
        for content in (b"old", b"newer"):
            info = tarfile.TarInfo("cat/1.png")
            info.size = len(content)
            tar.addfile(info, io.BytesIO(content))
    assert TarTree(path).read("cat/1.png") == b"newer"


def header_of_size(size):
    """A tar's header of a member of any size, in the binary form that is used for large ones."""
    header = bytearray(tarfile.TarInfo("cat/1.png").tobuf(tarfile.GNU_FORMAT))
    header[124:136] = b"\x80" + size.to_bytes(11, "big")
    header[148:156] = b" " * 8
    header[148:156] = b"%06o\0 " % sum(header)
    return bytes(header)


@pytest.mark.parametrize("size", [2**20, 2**62, 2**88 - 1])
def test_a_member_beyond_the_end(tmp_path, size):
    (tmp_path / "a.tar").write_bytes(header_of_size(size) + bytes(1024))
    with pytest.raises(UsageError, match=r"cannot read the tar: .*a\.tar \("):
        TarTree(tmp_path / "a.tar")


def test_a_member_with_holes(tmp_path):
    """What GNU tar --sparse writes is not the file's bytes one after the other."""
    info = tarfile.TarInfo("cat/1.png")
    info.type, info.size = tarfile.GNUTYPE_SPARSE, 512
    header = bytearray(info.tobuf(tarfile.GNU_FORMAT))
    header[386:410] = b"00000000000\0" + b"00000001000\0"
    header[483:495] = b"00000002000\0"
    header[148:156] = b" " * 8
    header[148:156] = b"%06o\0 " % sum(header)
    (tmp_path / "a.tar").write_bytes(bytes(header) + bytes(512) + bytes(1024))
    with pytest.raises(UsageError, match=r"cat/1\.png is stored with holes"):
        TarTree(tmp_path / "a.tar")
