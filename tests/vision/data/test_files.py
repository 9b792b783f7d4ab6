"""Folders as trees: what cannot be read does not count as empty, and nothing is left out unnoticed."""

import os

import pytest

from sot_base.errors import UsageError
from tests.vision.conftest import make_image, make_split
from vision.data import open_source
from vision.data.file_names import count_endings, is_image_name
from vision.data.files import FolderTree, find_images


@pytest.fixture
def locked(monkeypatch):
    """Refuse to list folders of a name, as the system does without the right to read them (it lets root)."""
    scan = os.scandir

    def refuse(path):
        if os.path.basename(path) == "owl":
            raise PermissionError(13, "Permission denied", str(path))
        return scan(path)

    monkeypatch.setattr(os, "scandir", refuse)


def test_a_class_folder_that_may_not_be_read(tmp_path, locked):
    make_split(tmp_path / "train")
    message = r"^cannot read a folder \(Permission denied\): .*train/owl; make it readable"
    with pytest.raises(UsageError, match=message):
        open_source(str(tmp_path), "train")
    with pytest.raises(UsageError, match=message):
        find_images([str(tmp_path)])


def test_links_to_folders(tmp_path):
    make_split(tmp_path / "a", ["cat"], count=1)
    (tmp_path / "b").symlink_to("a")
    (tmp_path / "a" / "cat" / "up").symlink_to("..")  # into the folder that it lies in: not followed again
    assert FolderTree(tmp_path).files() == ["a/cat/0.png", "b/cat/0.png"]
    assert FolderTree(tmp_path).files("b") == ["cat/0.png"]
    assert FolderTree(tmp_path).files("nowhere") == []


@pytest.mark.parametrize(
    "ending", ["jfif", "jpe", "JPG", "avif", "jp2", "tif", "webp", "gif", "bmp", "ppm", "tga", "psd"]
)
def test_endings_that_pillow_reads(ending):
    assert is_image_name(f"a.{ending}")


@pytest.mark.parametrize("ending", ["txt", "heic", "eps", "pdf", "h5", "mpg", "wmf", ""])
def test_other_endings(ending):
    assert not is_image_name(f"a.{ending}")


@pytest.mark.parametrize("ending, kind", [("jfif", "JPEG"), ("jpe", "JPEG"), ("avif", "AVIF"), ("jp2", "JPEG2000")])
def test_images_of_rarer_endings_are_read(tmp_path, ending, kind):
    (tmp_path / "train" / "cat").mkdir(parents=True)
    make_image(0, 0, 32).save(tmp_path / "train" / "cat" / f"a.{ending}", format=kind)
    assert open_source(str(tmp_path), "train").image(0).size == (32, 32)


def test_files_that_are_left_out_are_counted(tmp_path, caplog):
    make_split(tmp_path / "train", ["cat"], count=2)
    for name in ("a.HEIC", "b.heic", "README"):
        (tmp_path / "train" / "cat" / name).write_bytes(b"x")
    with caplog.at_level("WARNING", "vision"):
        assert len(open_source(str(tmp_path), "train").targets) == 2
        find_images([str(tmp_path)])
    expected = "3 files are left out, by their endings: {} (.heic 2, no ending 1)"
    assert caplog.messages == [expected.format(tmp_path / "train"), expected.format(tmp_path)]


def test_count_endings():
    assert count_endings(["a/x.txt", "b.y/z", "q.TXT"]) == ".txt 2, no ending 1"
