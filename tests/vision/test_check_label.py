"""``python vision/check_label.py`` lists what does not fit, and shows maps of other images."""

import numpy as np
import pytest
import torch

from sot_base.errors import UsageError
from tests.vision.conftest import make_split
from vision.check_label import agreement, best_class, main
from vision.data.sources import open_source
from vision.token_label.read_maps import LabelMap
from vision.token_label.write_maps import write_label_maps, write_torch_maps

CLASSES = ["cat", "dog", "owl"]


def write_maps(folder, source, shift=0, write=write_label_maps, level=5.0, files=None):
    """Maps that name the class of their image at three of four places, or that of an image further on."""
    files = files or [source.key(index) for index in range(len(source.targets))]
    targets = np.roll(source.targets, shift)
    with write(folder, source.class_names, files, (2, 2), 1) as writer:
        for index in range(len(files)):
            classes = torch.full((1, 2, 2), int(targets[index]))
            classes[0, 1, 1] = (classes[0, 0, 0] + 1) % 3
            writer.put(index, LabelMap(torch.full((1, 2, 2), level), classes))
    return folder


@pytest.fixture
def source(images):
    return open_source(str(images), "train")


def check(*words):
    return main([*map(str, words), "-j", "0"])


@pytest.mark.parametrize("write", [write_label_maps, write_torch_maps])
def test_maps_that_fit(images, source, tmp_path, capsys, write):
    assert check(write_maps(tmp_path / "maps", source, write=write), images) == 0
    assert capsys.readouterr().out == (
        "15 maps: 100.00% have the image's class as their best one (by chance 33.33%), 100.00% have it anywhere\n"
        "every image has its label map\n"
    )


def test_loading_processes_and_another_split(images, tmp_path, capsys):
    maps = write_maps(tmp_path / "maps", open_source(str(images), "val"))
    assert main([str(maps), "--data-path", str(images), "--train-split", "val", "-j", "1"]) == 0
    assert capsys.readouterr().out.startswith("6 maps: 100.00%")


def test_maps_of_other_images(images, source, tmp_path, capsys):
    """One class further on: no map has its image's class as its best one."""
    assert check(write_maps(tmp_path / "maps", source, shift=5), images) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith("15 maps: 0.00% have the image's class as their best one (by chance 33.33%), 100.00%")
    assert lines[1].startswith("that is hardly more than chance: the maps may be of other images")


def test_missing_and_superfluous_maps(images, source, tmp_path, capsys):
    files = [source.key(index) for index in range(15)]
    files[0], files[14] = "cat/other.png", "zebra/1.png"
    for name, write in (("maps", write_label_maps), ("torch", write_torch_maps)):
        folder = write_maps(tmp_path / name, source, write=write, files=files)
        assert check(folder, images) == 1
        ending = "pt" if name == "torch" else "png"
        assert capsys.readouterr().out.splitlines() == [
            f"no label map of cat/0.png: {folder}",
            f"no label map of owl/4.png: {folder}",
            f"a label map of no image: cat/other.{ending} in {folder}",
            f"a label map of no image: zebra/1.{ending} in {folder}",
            "13 maps: 100.00% have the image's class as their best one (by chance 33.73%), 100.00% have it anywhere",
            "4 faults",
        ]


def test_maps_that_are_broken(images, source, tmp_path, capsys):
    folder = write_maps(tmp_path / "maps", source)
    np.load(folder / "classes.npy", mmap_mode="r+")[2, 0, 1, 0] = 3
    np.load(folder / "scores.npy", mmap_mode="r+")[4, 0, 0, 0] = np.nan
    assert check(folder, images) == 1
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith(f"a label map with class index 3 of 3 classes: cat/2.png in {folder}")
    assert lines[1] == f"a label map with scores that are not finite: cat/4.png in {folder}; make it again"
    assert lines[2].startswith("13 maps: 100.00%")
    assert lines[3:] == ["2 faults"]


def test_negative_scores(images, source, tmp_path, capsys):
    assert check(write_maps(tmp_path / "maps", source, level=-5.0), images) == 0
    assert "100.00% of the places have no score above 0" in capsys.readouterr().out


def test_what_cannot_be_checked(images, source, tmp_path):
    folder = write_maps(tmp_path / "maps", source)
    make_split(tmp_path / "data" / "train", [*CLASSES, "zebra"], count=1)
    with pytest.raises(UsageError, match="label maps of 3 classes for 4"):
        check(folder, tmp_path / "data")
    (folder / "scores.npy").write_bytes(b"")
    with pytest.raises(UsageError, match=r"cannot read label maps: .*scores\.npy"):
        check(folder, images)
    with pytest.raises(UsageError, match="no label maps"):
        check(images, images)
    with pytest.raises(UsageError, match="no data: give a folder"):
        check(folder)


def test_the_best_class_counts_absent_ones_as_0():
    scores, classes = torch.tensor([[[3.0, 2.0, 2.0]]]), torch.tensor([[[0, 1, 1]]])
    assert best_class(LabelMap(scores, classes), 3) == 1
    assert best_class(LabelMap(-scores, classes), 3) == 2


def test_chance_counts_how_often_classes_are_there():
    best, targets = np.array([0, 0, 0, 1]), np.array([0, 0, 1, 1])
    found = agreement(best, np.array([True, True, False, True]), targets, 2)
    assert found == (4, 0.75, 0.5, 0.75)
    assert not found.is_weak
    assert agreement(best, best == 0, np.array([0, 1, 0, 0]), 2).is_weak
