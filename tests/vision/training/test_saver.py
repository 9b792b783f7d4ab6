"""Checkpoint files: whole or not there, and one line when the disk is full."""

import re
import resource
import shutil

import pytest
import torch

from sot_base.errors import os_error_message
from tests.vision.conftest import load
from vision.training.saver import save_checkpoint


@pytest.fixture
def small_files():
    """Files cannot grow beyond 30,000 bytes, as on a full disk."""
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (30000, limits[1]))
    yield
    resource.setrlimit(resource.RLIMIT_FSIZE, limits)


def test_a_full_disk_keeps_the_file_that_was_there(tmp_path, small_files):
    path = tmp_path / "last.pth.tar"
    save_checkpoint(path, {"state_dict": {"weight": torch.ones(3)}})
    with pytest.raises(OSError, match="File too large") as error:
        save_checkpoint(path, {"state_dict": {"weight": torch.ones(30000)}})
    assert error.value.filename == str(path)
    assert torch.load(path, weights_only=True)["state_dict"]["weight"].tolist() == [1, 1, 1]
    assert [file.name for file in tmp_path.iterdir()] == ["last.pth.tar"]


def test_a_full_disk_in_training(images, train, tmp_path, small_files):
    with pytest.raises(OSError, match="File too large") as error:
        train(images, "--epochs", 1, "--no-tensorboard")
    message = r"^File too large: .*/runs/run/last\.pth\.tar; raise the limit of file sizes \(ulimit -f\), or choose"
    assert re.match(message, os_error_message(error.value))
    assert [file.name for file in (tmp_path / "runs" / "run").iterdir()] == ["options.yaml"]


def test_the_best_epochs_are_kept(images, train):
    folder = train(images, "--epochs", 4, "-b", 5, "--lr", "5e-3", "--no-aug", "--checkpoint-hist", 2)
    saver = load(folder)["saver"]
    kept = sorted(path.name for path in folder.glob("checkpoint-*"))
    assert len(kept) == 2
    best = load(folder, f"checkpoint-{saver['best_epoch']}")
    assert best["metric"] == saver["best_metric"] == load(folder, "model_best")["metric"]


def test_a_file_system_without_links(images, train, monkeypatch):
    def refuse(*args):
        raise OSError("not supported")

    monkeypatch.setattr("os.link", refuse)
    folder = train(images, "--epochs", 1)
    assert (folder / "model_best.pth.tar").read_bytes() == (folder / "last.pth.tar").read_bytes()
    shutil.rmtree(folder)
