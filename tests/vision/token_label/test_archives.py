"""Label maps as they are downloaded: under a folder of the archive, or packed."""

import os
import re
import shutil
import subprocess
import sys
import tarfile

import pytest
import torch

from sot_base.errors import UsageError
from vision.token_label.read_maps import LabelMap, open_label_maps
from vision.token_label.write_maps import write_label_maps

CLASSES, NAMES = ["cat", "dog"], ["cat/1.png", "dog/2.png"]
TOP = "label_top5_train_nfnet"


@pytest.fixture
def published(tmp_path):
    """A folder with the published archive's folder, which has a file for each image."""
    for number, name in enumerate(NAMES):
        path = tmp_path / "in" / TOP / f"{name.split('.')[0]}.pt"
        path.parent.mkdir(parents=True)
        scores, classes = torch.full((1, 3, 3), 9.0), torch.full((1, 3, 3), float(number))
        torch.save(torch.stack([scores, classes]).half(), path)
    return tmp_path / "in"


def check(root):
    maps = open_label_maps(root, CLASSES)
    assert (maps.missing(NAMES), maps.superfluous(NAMES)) == ([], [])
    assert [maps.read(name).classes.unique().tolist() for name in NAMES] == [[0], [1]]


def test_a_folder_above_the_classes(published):
    check(published / TOP)
    check(published)
    (published.parent / "deeper").mkdir()
    shutil.move(published, published.parent / "deeper")
    check(published.parent / "deeper")


@pytest.mark.parametrize("name", [TOP, ".", f"data/{TOP}"])
def test_a_folder_in_a_tar(published, tmp_path, name):
    with tarfile.open(tmp_path / "maps.tar", "w") as tar:
        tar.add(published / TOP, name)
    check(tmp_path / "maps.tar")


def test_a_folder_above_the_header(tmp_path):
    with write_label_maps(tmp_path / "in" / "maps", CLASSES, NAMES, (3, 3), 1) as writer:
        for number in range(2):
            writer.put(number, LabelMap(torch.full((1, 3, 3), 9.0), torch.full((1, 3, 3), number)))
    check(tmp_path / "in" / "maps")
    check(tmp_path / "in")


@pytest.mark.parametrize("kind", ["gztar", "bztar", "xztar", "zip"])
def test_a_packed_archive_is_named_with_the_command_that_unpacks_it(published, tmp_path, monkeypatch, kind):
    monkeypatch.chdir(tmp_path)
    archive = os.path.basename(shutil.make_archive("my maps", kind, published))
    with pytest.raises(UsageError, match=r"^label maps in a compressed archive: my maps\..*; unpack it \(") as caught:
        open_label_maps(archive, CLASSES)
    command, folder = re.search(r"unpack it \((.*)\) and give (.*)$", str(caught.value)).groups()
    path = f"{os.path.dirname(sys.executable)}{os.pathsep}{os.environ['PATH']}"  # where `python` is
    subprocess.run(command, shell=True, check=True, env={**os.environ, "PATH": path})
    check(folder)


def test_other_depths_are_no_folder_above(published):
    torch.save(torch.zeros(2, 1, 3, 3).half(), published / "cat.pt")
    maps = open_label_maps(published, CLASSES)
    assert maps.missing(NAMES) == NAMES
