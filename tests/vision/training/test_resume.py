"""Continuing a run: which checkpoint, what of it counts, what must be the same, and checkpoints of older versions."""

import shutil

import pytest
import torch

from sot_base.errors import UsageError
from tests.vision.conftest import assert_same_state, load, rows, weights
from vision.training.find_run import find_checkpoints

COMMON = ("--epochs", 2, "-b", 4)


@pytest.fixture
def loaded(monkeypatch):
    """The checkpoint files that torch reads, and whether their tensors are mapped only."""
    seen, read = [], torch.load

    def note(file, *args, **kwargs):
        seen.append((file.name, bool(kwargs.get("mmap"))))
        return read(file, *args, **kwargs)

    monkeypatch.setattr(torch, "load", note)
    return seen


def save(folder, name, updates):
    torch.save({"state_dict": {}, "progress": {"updates": updates}}, folder / f"{name}.pth.tar")


class TestTheLatestCheckpoint:
    def test_it_has_seen_the_most_updates(self, tmp_path, loaded):
        save(tmp_path, "last", 8)
        save(tmp_path, "model_best", 99)
        assert [file.name for file in find_checkpoints(tmp_path)] == ["last.pth.tar"]
        assert loaded == []  # there is no choice
        save(tmp_path, "recovery-1-9", 9)
        save(tmp_path, "recovery-0-7", 7)
        newest = ["recovery-1-9.pth.tar", "last.pth.tar", "recovery-0-7.pth.tar"]
        assert [file.name for file in find_checkpoints(tmp_path)] == newest
        assert len(loaded) == 3
        assert all(mapped for _, mapped in loaded)

    def test_the_weights_of_one_file_are_read_once(self, images, train, loaded):
        folder = train(images, *COMMON)
        save(folder, "recovery-0-1", 1)
        loaded.clear()
        train(images, "--epochs", 3, "-b", 4, "--resume")
        assert [name for name, mapped in loaded if not mapped] == ["last.pth.tar"]
        assert len(loaded) == 1 + 2  # the plain values of both are read once, for the recipe and for which is newer

    def test_there_is_none(self, images, train):
        with pytest.raises(UsageError, match=r"nothing to resume: no checkpoint in .*runs/run; leave out --resume"):
            train(images, "--resume")

    def test_one_that_is_damaged_is_left_out(self, tmp_path, caplog):
        save(tmp_path, "last", 8)
        save(tmp_path, "recovery-1-9", 9)
        (tmp_path / "recovery-1-9.pth.tar").write_bytes((tmp_path / "recovery-1-9.pth.tar").read_bytes()[:100])
        assert [file.name for file in find_checkpoints(tmp_path)] == ["last.pth.tar"]
        assert "recovery-1-9.pth.tar" in caplog.text
        (tmp_path / "last.pth.tar").write_bytes(b"text")
        with pytest.raises(UsageError, match=r"last\.pth\.tar"):
            find_checkpoints(tmp_path)


class TestOptions:
    def test_learning_rate_and_weight_decay_are_those_of_the_options(self, images, train):
        words = [*COMMON, "--sched", "constant", "--warmup-epochs", 0, "--layer-decay", 0.5]
        train(images, *words, "--max-steps", 6, "--lr", 1e-3)
        folder = train(images, *words, "--lr", 5e-4, "--weight-decay", 0.3, "--resume")
        assert [float(row["lr"]) for row in rows(folder)] == pytest.approx([1e-3, 5e-4])
        groups = load(folder)["optimizer"]["param_groups"]
        assert {group["weight_decay"] for group in groups} == {0, 0.3}
        assert {group["lr"] / group["lr_scale"] for group in groups} == {5e-4}
        assert load(folder)["options"]["lr"] == 5e-4

    def test_another_precision(self, images, train):
        """A run without a loss scaler goes on with one."""
        train(images, *COMMON, "--max-steps", 4)
        folder = train(images, *COMMON, "--amp", "--amp-dtype", "float16", "--resume")
        assert load(folder)["amp_scaler"]["scale"] > 0

    def test_another_layer_decay(self, images, train):
        train(images, *COMMON, "--max-steps", 4)
        with pytest.raises(UsageError, match=r"another layer_decay, None instead of 0\.9; give the same options, or"):
            train(images, *COMMON, "--layer-decay", 0.9, "--resume")


def test_an_evaluation_that_failed_is_all_that_is_repeated(images, train, tmp_path):
    """A bad file of the validation costs no training, and changes nothing."""
    data = shutil.copytree(images, tmp_path / "data")
    image = data / "val" / "owl" / "101.png"
    content = image.read_bytes()
    straight = train(data, *COMMON, name="straight")
    image.write_bytes(b"text")
    with pytest.raises(UsageError, match=r"owl/101\.png"):
        train(data, *COMMON, name="parts")
    folder = tmp_path / "runs" / "parts"
    saved = load(folder, "recovery-0-4")
    assert (saved["progress"]["epoch"], saved["progress"]["step"]) == (0, 4)
    assert not (folder / "summary.csv").exists()
    image.write_bytes(content)
    parts = train(data, *COMMON, "--resume", name="parts")
    for key in ("state_dict", "optimizer", "progress", "metric"):
        assert_same_state(load(parts)[key], load(straight)[key])
    assert rows(parts) == rows(straight)


def test_a_checkpoint_of_before_the_history(images, train):
    """The rows of the epochs before it are those of summary.csv."""
    straight = train(images, *COMMON, name="straight")
    folder = train(images, *COMMON, "--max-steps", 6, name="parts")
    path = folder / "last.pth.tar"
    checkpoint = torch.load(path, weights_only=True)
    for key in ("history", "bad_images"):
        del checkpoint["progress"][key]
    torch.save(checkpoint, path)
    train(images, *COMMON, "--resume", name="parts")
    assert rows(folder) == rows(straight)
    assert_same_state(weights(folder), weights(straight))
    assert len(load(folder)["progress"]["history"]) == 2


@pytest.mark.parametrize(
    "change, message",
    [
        ({"saver": None}, r"no saver in the checkpoint: .*last\.pth\.tar; resume from another one"),
        ({"optimizer": None, "images_per_step": None}, "no optimizer, images_per_step in the checkpoint"),
        ({"progress": {"history": [{"epoch": 0, "lr": "\0"}]}}, r"lr in a row of the log is '\\x00', not a number: .*"),
    ],
)
def test_a_checkpoint_that_is_not_whole_is_refused(images, train, change, message):
    path = train(images, *COMMON, "--max-steps", 6) / "last.pth.tar"
    checkpoint = torch.load(path, weights_only=True)
    for key, value in change.items():
        if value is None:
            del checkpoint[key]
        else:
            checkpoint[key].update(value)
    torch.save(checkpoint, path)
    with pytest.raises(UsageError, match=message):
        train(images, *COMMON, "--resume")
