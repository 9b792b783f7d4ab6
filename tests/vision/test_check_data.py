"""``python -m vision.check_data`` lists what cannot be read."""

import tarfile

import pytest

from sot_base.errors import UsageError
from tests.vision.conftest import CLASSES, make_image, make_split
from vision.check_data import main


@pytest.mark.parametrize("workers", [0, 2])
def test_bad_files_are_listed(tmp_path, capsys, workers):
    make_split(tmp_path / "train", count=2)
    (tmp_path / "train" / "cat" / "empty.jpg").write_bytes(b"")
    (tmp_path / "train" / "dog" / "text.jpeg").write_bytes(b"text")
    make_image(0, 0, size=64).save(tmp_path / "train" / "owl" / "cut.jpg")
    (tmp_path / "train" / "owl" / "cut.jpg").write_bytes((tmp_path / "train" / "owl" / "cut.jpg").read_bytes()[:500])
    (tmp_path / "train" / "owl" / "gone.png").symlink_to(tmp_path / "nowhere")
    (tmp_path / "train" / "owl" / "notes.txt").write_text("no image, no fault")
    assert main([str(tmp_path), "-j", str(workers)]) == 1
    lines = capsys.readouterr().out.splitlines()
    assert lines[:4] == [
        "train/cat: 3",
        "train/dog: 3",
        "train/owl: 4",
        "1 files are left out, by their endings: .txt 1",
    ]
    lines = lines[4:]
    assert [line.split(": ")[0].removeprefix(f"{tmp_path}/train/") for line in lines[:4]] == [
        "cat/empty.jpg",
        "dog/text.jpeg",
        "owl/cut.jpg",
        "owl/gone.png",
    ]
    assert lines[0].endswith(": the file is empty")
    assert lines[1].endswith(": it is not an image")
    assert "runcated" in lines[2]
    assert "No such file" in lines[3]
    assert lines[4:] == ["4 bad images"]


def test_a_good_data_set(images, capsys):
    assert main([str(images), "-j", "0"]) == 0
    lines = [f"{split}/{name}: {count}" for split, count in (("train", 5), ("val", 2)) for name in CLASSES]
    assert capsys.readouterr().out.splitlines() == [*lines, "all 21 images can be read"]


def test_tars(tmp_path, capsys):
    make_split(tmp_path / "files", ["cat"], count=2)
    (tmp_path / "files" / "cat" / "0.png").write_bytes(b"text")
    (tmp_path / "data").mkdir()
    with tarfile.open(tmp_path / "data" / "train.tar", "w") as tar:
        tar.add(tmp_path / "files", "train")
    (tmp_path / "data" / "val.tar").write_bytes(b"no tar")
    assert main([str(tmp_path / "data"), "-j", "0"]) == 1
    out = capsys.readouterr().out
    assert "cannot read the tar: " in out
    assert "train/train/cat: 2\n" in out
    assert "train.tar/train/cat/0.png: it is not an image" in out
    assert main([str(tmp_path / "data" / "train.tar"), "-j", "0"]) == 1


def test_a_larger_image(tmp_path, capsys):
    make_split(tmp_path / "train", ["cat"], count=1)
    assert main([str(tmp_path), "-j", "0", "--max-pixels", "143"]) == 1
    assert "0.png: 12x12 pixels, more than 143; see --max-pixels" in capsys.readouterr().out
    assert main([str(tmp_path), "-j", "0", "--max-pixels", "144"]) == 0


def test_no_images(tmp_path):
    with pytest.raises(UsageError, match="no images: "):
        main([str(tmp_path)])
    with pytest.raises(UsageError, match=r"no such folder or tar: .*absent"):
        main([str(tmp_path / "absent")])
