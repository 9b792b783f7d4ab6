"""Options of training: learning rates, schedules, augmentation, logs, data of other kinds."""

import sys
import tarfile

import pytest
import torch
import yaml
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from sot_base.errors import UsageError
from tests.vision.conftest import assert_same_state, load, make_image, rows, weights
from vision.cli.config_file import parse_args
from vision.cli.train_options import train_parser


@pytest.mark.parametrize("words, lr", [([], 1e-3), (["--lr", "0.02"], 0.02), (["--lr-base", 0.1], 0.1 * 8 / 256)])
def test_learning_rate(images, train, words, lr, capsys):
    train(images, "-b", 4, "--grad-accum-steps", 2, "--dry-run", *words)
    assert f"\nlr: {lr}\n" in capsys.readouterr().out


def test_learning_rate_options_exclude_each_other(images, train):
    with pytest.raises(UsageError, match="--lr and --lr-base say the same"):
        train(images, "--lr", 1, "--lr-base", 1)


@pytest.mark.parametrize("saved, given", [("lr_base", "lr"), ("lr", "lr_base"), ("lr-base", "lr")])
def test_a_learning_rate_overrules_the_files_of_either_kind(images, train, tmp_path, saved, given, capsys):
    path = tmp_path / "rate.yaml"
    path.write_text(f"{saved}: 5.0\n")
    train(images, "--config", path, "--dry-run", f"--{given.replace('_', '-')}", 0.25, "-b", 256)
    assert "\nlr: 0.25\n" in capsys.readouterr().out


def test_arguments_of_the_model_go_on_top_of_a_files(tmp_path):
    path = tmp_path / "mine.yaml"
    path.write_text("model: vit_tiny_patch16_224\nmodel_kwargs: {depth: 2, embed_dim: 24}\nopt_kwargs: {eps: 1.0e-6}\n")
    words = ["--config", str(path), "--model-kwargs", "depth=1", "qkv_bias=false", "--opt-kwargs", "betas=(0.8,0.9)"]
    args = parse_args(train_parser(), words)
    assert args.model_kwargs == {"depth": 1, "embed_dim": 24, "qkv_bias": False}
    assert args.opt_kwargs == {"eps": 1e-6, "betas": (0.8, 0.9)}
    args = parse_args(train_parser(), [*words, "--model", "resnet18", "--opt", "sgd"])
    assert args.model_kwargs == {"depth": 1, "qkv_bias": False}
    assert args.opt_kwargs == {"betas": (0.8, 0.9)}
    assert parse_args(train_parser(), [*words, "--model-kwargs"]).model_kwargs == {}


@pytest.fixture
def lrs(images, train, monkeypatch):
    """The learning rates at the end of each epoch of a run, without its picture."""
    monkeypatch.setattr("vision.train.draw_curves", lambda *args: None)

    def run(*words):
        folder = train(images, "-b", 15, "--lr", 1e-3, "--warmup-epochs", 0, *words)
        return [float(row["lr"]) for row in rows(folder)]

    return run


@pytest.mark.parametrize(
    "words, expected",
    [
        (["--sched", "step", "--decay-epochs", 1, "--decay-rate", 0.5], [5e-4, 2.5e-4, 1.25e-4]),
        (["--sched", "multistep", "--decay-milestones", 3, "--decay-rate", 0.1], [1e-3, 1e-4, 1e-4]),
        (["--sched", "constant"], [1e-3, 1e-3, 1e-3]),
        (["--sched", "poly", "--decay-rate", 1, "--min-lr", 0], [1e-3 * 2 / 3, 1e-3 / 3, 0]),
        (["--min-lr", 1, "--sched", "cosine"], [1e-3, 1e-3, 1e-3]),  # never above --lr
        (["--cooldown-epochs", 1, "--min-lr", 1e-4], [7.75e-4, 3.25e-4, 1e-4, 1e-4]),
    ],
)
def test_schedules(lrs, words, expected):
    assert lrs("--epochs", 3, *words) == pytest.approx(expected, rel=1e-4, abs=1e-9)


@pytest.mark.parametrize("sched", ["tanh", "wsd", "rsqrt"])
def test_other_schedules_run(lrs, sched):
    found = lrs("--epochs", 3, "--sched", sched, "--decay-epochs", 1, "--warmup-epochs", 0.7)
    assert len(found) == 3
    assert all(0 < lr <= 1e-3 for lr in found)


@pytest.mark.parametrize(
    "words",
    [
        ["--channels-last", "--layer-decay", 0.75, "--opt-kwargs", "eps=1e-7", "betas=(0.9,0.95)"],
        ["--input-size", 3, 8, 12, "--vflip", 0.5, "--train-crop-mode", "rkrc"],
        ["--cutmix-minmax", 0.2, 0.5, "--mixup-mode", "elem", "--mixup-prob", 0.5, "--mixup-switch-prob", 1],
        ["--mixup", 0.5, "--mixup-mode", "pair", "--mixup-off-epoch", 1, "--epochs", 2],
        ["--aug-repeats", 3, "--reprob", 0.5, "--remode", "const", "--recount", 2, "--color-jitter", 0],
        ["--ratio", 0.9, 1.1, "--scale", 0.5, 1, "--aa", "augmix-m5-w2", "--train-interpolation", "bilinear"],
        ["--clip-grad", 0.1, "--clip-mode", "agc", "--model-ema", "--model-ema-warmup", "--no-tensorboard"],
        ["--crop-pct", 0.9, "--crop-mode", "squash", "--interpolation", "bilinear", "--mean", 0.5, "--std", 0.5],
        ["--drop", 0.1, "--drop-path", 0.1, "--lr-base", 1e-2, "--lr-base-scale", "sqrt", "--checkpoint-hist", 2],
    ],
)
def test_further_options(images, train, monkeypatch, words):
    monkeypatch.setattr("vision.train.draw_curves", lambda *args: None)
    checkpoint = load(train(images, "--epochs", 1, "-b", 8, *words))
    assert checkpoint["progress"]["updates"] in (2, 4)
    if "--input-size" in words:
        assert checkpoint["data_config"]["input_size"] == (3, 8, 12)
        assert checkpoint["state_dict"]["pos_embed"].shape[1] == 1 + 4 * 6


def test_dry_run(images, train, capsys, tmp_path):
    train(images, "--dry-run", "-b", 1024, "--lr", "1e-3", "--amp")
    out = capsys.readouterr().out
    values = yaml.safe_load(out.rsplit("loss of", 1)[0])
    assert (values["batch_size"], values["lr"], values["amp"]) == (1024, 1e-3, True)
    assert values["recipe"]["num_classes"] == 3
    assert values["data_config"]["input_size"] == [3, 8, 8]
    assert 0.9 < float(out.rsplit("loss of the first 8 images: ", 1)[1]) < 1.4
    assert not list(tmp_path.iterdir())


def test_digits_and_progress_without_a_picture_library(train, monkeypatch):
    import sys

    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    folder = train("--dataset=digits", "--epochs", 1, "-b", 200, "--max-steps", 2)
    assert not (folder / "curves.png").exists()
    assert (folder / "last.pth.tar").exists()


def test_tensorboard_if_it_is_there(images, train, monkeypatch, caplog):
    folder = train(images, "--epochs", 2, name="with")
    log = EventAccumulator(str(folder)).Reload()
    assert {"train/loss", "eval/top1", "lr"} <= set(log.Tags()["scalars"])
    assert [event.step for event in log.Scalars("eval/top1")] == [0, 1]
    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", None)
    with caplog.at_level("INFO", "vision"):
        train(images, "--epochs", 1, name="without")
    assert "TensorBoard is not installed" in caplog.text


@pytest.mark.slow
def test_compiled_model(images, train, monkeypatch):
    compile_model = torch.compile
    monkeypatch.setattr(torch, "compile", lambda model, **kwargs: compile_model(model, **kwargs | {"backend": "eager"}))
    folder = train(images, "--epochs", 1, "-b", 8, "--compile", "--model-ema")
    assert "cls_token" in weights(folder)


def test_images_of_16_bits_train(tmp_path, train):
    import numpy as np
    from PIL import Image

    for split in ("train", "val"):
        for name in ("a", "b"):
            (tmp_path / "data" / split / name).mkdir(parents=True)
            values = (np.asarray(make_image(0, 0).convert("L")).astype(np.uint16)) * 257
            Image.fromarray(values).save(tmp_path / "data" / split / name / "x.png")
    folder = train(tmp_path / "data", "--epochs", 1)
    assert np.isfinite(float(rows(folder)[0]["train_loss"]))


def test_training_from_a_tar(images, train, tmp_path):
    with tarfile.open(tmp_path / "data.tar", "w") as tar:
        for split in ("train", "val"):
            tar.add(images / split, split)
    folder = train(tmp_path / "data.tar", "--epochs", 1, "-b", 4, name="tar")
    assert_same_state(weights(folder), weights(train(images, "--epochs", 1, "-b", 4, name="folder")))


def test_more_outputs_than_classes(images, train):
    checkpoint = load(train(images, "--epochs", 1, "--num-classes", 5))
    assert checkpoint["state_dict"]["head.cls_fc.weight"].shape[0] == 5
    assert checkpoint["class_names"][3:] == ["unused_3", "unused_4"]
    with pytest.raises(UsageError, match="--num-classes 2 is too small"):
        train(images, "--num-classes", 2, name="few")
