"""What people reported of trainings of images: options, folders and files as they have them."""

import csv
import logging
import os
import signal
import subprocess
import sys
import time

import pytest
import torch

from sot_base.errors import UsageError
from tests.support import REPOSITORY
from tests.vision.conftest import TINY, load, make_image, make_split, rows, weights
from vision import export, predict, validate
from vision import train as train_module
from vision.data import dataset as dataset_module

SHORT = ("--epochs", 1, "-b", 8)
KWARGS = ("--model-kwargs", "depth=1", "embed_dim=16", "num_heads=2")


@pytest.mark.parametrize("words", [("--local-rank", 0), ("--local_rank=0",)])
def test_the_rank_that_launchers_give_is_accepted(words, images, train):
    assert len(rows(train(images, *SHORT, *words))) == 1


def test_a_model_of_grey_images(images, train):
    folder = train(images, *SHORT, *KWARGS, "in_chans=1")
    first = next(value for value in weights(folder).values() if value.ndim == 4)
    assert first.shape[1] == 1
    validate.main([str(images), "--checkpoint", str(folder / "last.pth.tar"), "--device", "cpu", "-j", "0"])


def test_a_model_of_four_channels_is_refused(images, train):
    with pytest.raises(UsageError, match="images are read in 3 channels, or 1: --model-kwargs in_chans=4; give 1 or 3"):
        train(images, *SHORT, *KWARGS, "in_chans=4")


class TestClassWeights:
    @pytest.fixture
    def uneven(self, tmp_path):
        make_split(tmp_path / "data" / "train", count=3)
        make_split(tmp_path / "data" / "train", classes=("cat",), count=6)
        return make_split(tmp_path / "data" / "val", count=2, first=100).parent

    @pytest.mark.parametrize(
        "option, said",
        [("balanced", "cat 0.6667, dog 1.333, owl 1.333"), ("cat=2,dog=1,owl=4", "cat 2, dog 1, owl 4")],
    )
    def test_by_count_or_by_name(self, option, said, uneven, train, caplog):
        caplog.set_level(logging.INFO, "vision")
        folder = train(uneven, *SHORT, "--lr", 0, "--no-aug", "--smoothing", 0, "--class-weights", option)
        assert f"class weights: {said}" in caplog.messages
        plain = train(uneven, *SHORT, "--lr", 0, "--no-aug", "--smoothing", 0, name="plain")
        assert rows(folder)[0]["train_loss"] != rows(plain)[0]["train_loss"]

    def test_a_class_that_is_not_there(self, uneven, train):
        with pytest.raises(UsageError, match="emu"):
            train(uneven, *SHORT, "--class-weights", "emu=2")


def test_a_run_without_improvement_ends_early(images, train):
    words = ("-b", 8, "--epochs", 30, "--lr", 0, "--warmup-epochs", 0, "--patience", 2)
    folder = train(images, *words)
    assert len(rows(folder)) == 3  # the first evaluation is the best one
    train(images, *words, "--resume")
    assert len(rows(folder)) == 3  # it is finished


def test_images_of_several_classes(tmp_path, train):
    lists = (["cat"], ["dog", "owl"], [], ["owl"], ["cat", "dog"], ["dog"])
    for split in ("train", "val"):
        folder = tmp_path / "data" / split
        folder.mkdir(parents=True)
        for number in range(len(lists)):
            make_image(number % 3, number).save(folder / f"{number}.png")
        with (folder / "metadata.csv").open("w", newline="") as file:
            table = csv.writer(file)
            table.writerow(["file_name", "labels"])
            table.writerows([f"{number}.png", ",".join(names)] for number, names in enumerate(lists))
    folder = train(tmp_path / "data", "--epochs", 1, "-b", 3, "--multi-label")
    assert load(folder)["state_dict"]["head.cls_fc.bias"].shape == (3,)
    assert load(folder)["options"]["multi_label"] is True


def test_file_names_that_are_no_utf8(images, trained, tmp_path, capsysbinary):
    folder = tmp_path / "photos"
    folder.mkdir()
    name = os.path.join(os.fsencode(folder), b"caf\xe9.png")
    make_image(0, 0).save(tmp_path / "plain.png")
    os.rename(tmp_path / "plain.png", name)
    words = [str(folder), "--checkpoint", str(trained / "last.pth.tar"), "--device", "cpu", "-j", "0"]
    for form in ("text", "csv", "json"):
        output = tmp_path / f"out.{form}"
        predict.main([*words, "--format", form, "--output", str(output)])
        assert b"caf\xe9.png" in output.read_bytes() or rb"caf\udce9.png" in output.read_bytes()


class TestResume:
    @pytest.fixture
    def run(self, tmp_path, monkeypatch):
        """Train on one of two data sets of the same name, without --experiment."""
        monkeypatch.chdir(tmp_path)
        for place in ("a", "b"):
            make_split(tmp_path / place / "pets" / "train", count=4 if place == "a" else 5)
            make_split(tmp_path / place / "pets" / "val", count=1, first=100)

        def run(place, *words):
            words = [*TINY, "--output", "runs", "-b", "4", *map(str, words)]
            train_module.main([str(tmp_path / place / "pets"), *words])
            return {path.name: len(rows(path)) for path in (tmp_path / "runs").iterdir()}

        return run

    def test_the_run_is_found_by_its_data(self, run):
        run("a", "--epochs", 2, "--max-steps", 3)
        before = run("b", "--epochs", 2, "--max-steps", 4)
        assert run("b", "--epochs", 2, "--resume") == {**before, "sot_micro-pets-1": 2}
        assert run("a", "--epochs", 2, "--resume") == {"sot_micro-pets": 2, "sot_micro-pets-1": 2}

    def test_options_that_are_given_count_and_are_recorded(self, images, train):
        words = ("--epochs", 3, "-b", 8, "--opt", "momentum", "--warmup-epochs", 0, "--sched", "constant")
        folder = train(images, *words, "--max-steps", 2, "--lr", 1e-3, "--weight-decay", 0.1, "--momentum", 0.5)
        more = ("--lr", 1e-4, "--weight-decay", 0.5, "--momentum", 0.8)
        train(images, *words, *more, "--resume")
        saved = load(folder)
        groups = saved["optimizer"]["param_groups"]
        assert {group["momentum"] for group in groups} == {saved["options"]["momentum"]} == {0.8}
        assert max(group["weight_decay"] for group in groups) == saved["options"]["weight_decay"] == 0.5
        assert saved["options"]["lr"] == 1e-4
        assert float(rows(folder)[-1]["lr"]) < 1e-3

    @pytest.mark.parametrize("more", [("-b", 2), ("-b", 4, "--grad-accum-steps", 2)])
    def test_another_batch_size_leaves_the_schedule_in_its_place(self, more, images, train):
        words = ("--epochs", 4, "--warmup-epochs", 1, "--lr", 1e-3)
        whole = rows(train(images, *words, "-b", 4, name="whole"))
        folder = train(images, *words, "-b", 4, "--max-steps", 8)  # two epochs of 15 images
        assert len(rows(folder)) == 2
        train(images, *words, *more, "--resume")
        rates = [[float(row["lr"]) for row in table] for table in (rows(folder), whole)]
        assert rates[0][-1] == pytest.approx(rates[1][-1])
        assert rates[0][2] == pytest.approx(rates[1][2], rel=0.3)  # rate of its last update


class TestFilesOfOthers:
    @pytest.mark.parametrize(
        "wrap",
        [
            lambda state: {"teacher": {f"module.backbone.{name}": value for name, value in state.items()}, "epoch": 1},
            lambda state: {"state_dict": {f"model.{name}": value for name, value in state.items()}, "epoch": 1},
            lambda state: {"weights": state},
        ],
        ids=["teacher", "lightning", "weights"],
    )
    def test_a_wrapped_state_is_recognised(self, wrap, images, train, trained, tmp_path):
        state = load(trained)["state_dict"]
        torch.save(wrap(state), tmp_path / "other.pth")
        folder = train(images, *SHORT, "--lr", 0, "--initial-checkpoint", tmp_path / "other.pth")
        same = weights(folder)
        assert all(torch.equal(same[name], state[name]) for name, _ in train_parameters(state))


def train_parameters(state):
    """What an update of rate 0 leaves alone: all but counters and running averages."""
    return [(name, value) for name, value in state.items() if value.is_floating_point() and "running" not in name]


@pytest.mark.parametrize("name", ["model.onnx", "model.pt2"])
def test_a_checkpoint_is_exported(name, trained, tmp_path, capsys):
    export.main(["--checkpoint", str(trained / "last.pth.tar"), "--output", str(tmp_path / name)])
    assert (tmp_path / name).stat().st_size > 1000
    assert '"class_names": ["cat", "dog", "owl"]' in capsys.readouterr().out


def test_no_room_in_shared_memory(monkeypatch):
    def full(tensor):
        raise RuntimeError("unable to write to file </torch_1_2>: No space left on device (28)")

    monkeypatch.setattr(torch.Tensor, "share_memory_", full)
    monkeypatch.setattr(dataset_module, "get_worker_info", object)
    batch = [(torch.zeros(3, 2, 2), 0), (torch.zeros(3, 2, 2), 1)]
    with pytest.raises(UsageError, match="no room in shared memory for a batch of 2 images: /dev/shm; raise it"):
        dataset_module.collate(torch.utils.data.default_collate, batch)


@pytest.mark.slow
@pytest.mark.e2e
@pytest.mark.parametrize("number, status", [(signal.SIGTERM, 143), (signal.SIGINT, 130)])
def test_a_signal_ends_a_training(number, status, images, tmp_path):
    words = [*TINY[:-1], "1", "--epochs", "100000", "-b", "8", "--output", str(tmp_path), "--experiment", "run"]
    process = subprocess.Popen(
        [sys.executable, "-m", "vision.train", str(images), *words],
        cwd=REPOSITORY,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    while not (tmp_path / "run" / "last.pth.tar").exists() and process.poll() is None:
        time.sleep(0.1)
    os.killpg(process.pid, number)
    _, said = process.communicate(timeout=300)
    assert process.returncode == status, said
    assert "Traceback" not in said
    if number == signal.SIGTERM:
        assert load(tmp_path / "run")["epoch"] >= 0
