"""What stops training, or keeps it from beginning: values that are not finite, bad images, contradictions."""

import shutil
from functools import partial

import pytest
import torch

from sot_base.errors import UsageError
from tests.vision.conftest import load, make_split, rows
from vision.training.finite import NonFiniteError


def test_inf_in_one_image_stops_with_the_last_good_checkpoint(images, train, monkeypatch, tmp_path):
    train(images, "--epochs", 1, "-b", 4)
    from vision.training import epoch as engine

    step = engine._train_step

    def spoil(trainer, progress, batch, targets):
        batch[0, 0, 0, 0] = float("inf") if progress.step == 2 else 0
        step(trainer, progress, batch, targets)

    monkeypatch.setattr(engine, "_train_step", spoil)
    expected = (
        r"^the loss is nan: epoch 1, step 2, lr \d\.\d+e-0\d, first in the images; "
        r"[^\n]*the last good checkpoint: runs/run/last\.pth\.tar$"
    )
    with pytest.raises(NonFiniteError, match=expected):
        train(images, "--epochs", 2, "-b", 4, "--resume")
    assert load(tmp_path / "runs" / "run")["progress"]["epoch"] == 1


def test_a_much_too_large_learning_rate_stops(images, train):
    options = ["--epochs", 4, "-b", 4, "--lr", "1e30", "--warmup-epochs", 0, "--opt", "sgd"]
    with pytest.raises(NonFiniteError, match=r"epoch \d|not finite after an update: the weight") as info:
        train(images, *options)
    assert "the last good checkpoint: none yet" in str(info.value)


def test_the_module_that_is_not_finite_is_named(images, train, monkeypatch):
    from timm.layers import Mlp

    monkeypatch.setattr(Mlp, "forward", lambda self, x: x * float("inf"))
    with pytest.raises(NonFiniteError, match=r"first in the output of blocks\.0\.mlp"):
        train(images, "--epochs", 1)


def test_gradients_that_always_overflow_are_an_error(images, train, monkeypatch):
    """The scale is far too large for float16 in every step of the epoch: nothing is learnt."""
    monkeypatch.setattr(torch.amp, "GradScaler", partial(torch.amp.GradScaler, init_scale=2.0**126))
    with pytest.raises(NonFiniteError, match=r"every update was skipped: epoch 0, .*use --amp-dtype bfloat16"):
        train(images, "--epochs", 1, "-b", 4, "--amp", "--amp-dtype", "float16")


def test_bad_images(images, train, tmp_path):
    data = shutil.copytree(images, tmp_path / "data")
    (data / "train" / "dog" / "2.png").write_bytes(b"text")
    with pytest.raises(UsageError, match=r"cannot read an image: .*dog/2\.png \(it is not an image\)"):
        train(data, "--epochs", 1, name="error")
    folder = train(data, "--epochs", 2, "-b", 1, "--bad-images", "skip", name="skip")
    assert [row["train_bad_images"] for row in rows(folder)] == ["1", "1"]


@pytest.mark.parametrize("workers", [0, 1])
def test_a_file_that_is_gone_is_a_bad_image(images, train, tmp_path, workers):
    data = shutil.copytree(images, tmp_path / "data")
    (data / "train" / "dog" / "gone.png").symlink_to(tmp_path / "nowhere.png")
    with pytest.raises(UsageError, match=r"cannot read an image: .*dog/gone\.png \(No such file or directory\)"):
        train(data, "--epochs", 1, "-j", workers, name="error")
    folder = train(data, "--epochs", 1, "-j", workers, "--bad-images", "skip", name="skip")
    assert rows(folder)[0]["train_bad_images"] == "1"


@pytest.mark.parametrize("split, what", [("train", "nothing to learn"), ("val", "nothing to evaluate")])
def test_bad_images_alone_are_an_error(images, train, tmp_path, split, what):
    data = shutil.copytree(images, tmp_path / "data")
    for path in (data / split).rglob("*.png"):
        path.write_bytes(b"text")
    with pytest.raises(UsageError, match=f"{what}: no image can be read; python -m vision.check_data"):
        train(data, "--epochs", 1, "--bad-images", "skip")


def test_an_evaluation_that_is_not_finite_keeps_the_last_good_checkpoint(images, train, monkeypatch, tmp_path):
    """Finite losses and weights in training do not make a good checkpoint."""
    train(images, "--epochs", 1)
    from vision.training import classification as module

    monkeypatch.setattr(module.ClassEvaluator, "compute", lambda *_, **__: {"loss": float("nan"), "top1": 50.0})
    with pytest.raises(
        NonFiniteError, match=r"the evaluation's loss is nan: epoch 1, step 1, lr .* checkpoint: runs/run/last"
    ):
        train(images, "--epochs", 2, "--resume")
    assert load(tmp_path / "runs" / "run")["progress"]["epoch"] == 1


def test_evaluation_stops_at_a_bad_image(images, train, tmp_path):
    data = shutil.copytree(images, tmp_path / "data")
    (data / "val" / "owl" / "101.png").write_bytes(b"")
    with pytest.raises(UsageError, match=r"owl/101\.png \(the file is empty\)"):
        train(data, "--epochs", 1)


def test_validation_classes_are_matched_by_name(images, train, tmp_path):
    data = shutil.copytree(images, tmp_path / "data")
    shutil.rmtree(data / "val" / "cat")
    train(data, "--epochs", 1, name="fewer")
    make_split(data / "val", ["zebra"])
    with pytest.raises(UsageError, match=r"unknown class zebra: .*val; the model knows 3 classes: cat, dog, owl"):
        train(data, "--epochs", 1, name="more")


def test_a_single_class_is_no_classification(tmp_path, train):
    make_split(tmp_path / "train", ["images"])
    make_split(tmp_path / "val", ["images"])
    with pytest.raises(UsageError, match="only one class, images"):
        train(tmp_path)


def test_a_cut_off_checkpoint_is_named(images, train):
    folder = train(images, "--epochs", 1)
    content = (folder / "last.pth.tar").read_bytes()
    (folder / "last.pth.tar").write_bytes(content[: len(content) // 2])
    with pytest.raises(UsageError, match=r"the file is cut off or damaged .*last\.pth\.tar"):
        train(images, "--epochs", 2, "--resume")


def test_a_second_run_does_not_overwrite_the_first(images, train):
    train(images, "--epochs", 1)
    with pytest.raises(UsageError, match="add --resume, or choose another --experiment"):
        train(images, "--epochs", 1)


def test_resume_within_an_epoch_needs_the_same_batch(images, train):
    train(images, "--epochs", 2, "-b", 4, "--max-steps", 1)
    with pytest.raises(UsageError, match="needs the same images a step, 4, not 3"):
        train(images, "--epochs", 2, "-b", 3, "--resume")


@pytest.mark.parametrize(
    "words, what",
    [
        (["--model", "vit_tiny_patch16_224"], "another name, sot_micro instead of vit_tiny_patch16_224"),
        (["--head-fusion", "concat"], "another head fusion, sum_fc instead of concat"),
        (["--drop-path", 0.2], "another drop_path_rate, its default instead of 0.2"),
        (["--token-label", "--dense-weight", 0], "another mix_token, its default instead of True"),
        (["--model-ema"], "no averaged weights"),
        (["--freeze-backbone"], "another optimizer"),
        (["--opt", "sgd"], r"another opt, adamw instead of sgd"),
    ],
)
def test_resume_with_other_options(images, train, words, what):
    train(images, "--epochs", 1)
    with pytest.raises(UsageError, match=what):
        train(images, "--epochs", 2, "--resume", *words)


@pytest.mark.parametrize("words", [[], ["--token-label", "--dense-weight", 0]])
def test_weights_that_cannot_be_had(images, train, monkeypatch, words):
    def no_network(*args, **kwargs):
        raise ConnectionError("no network\nat all")

    monkeypatch.setattr("timm.models._builder.load_state_dict_from_hf", no_network)
    words = ["--model", "vit_tiny_patch16_224", "--model-kwargs", "--img-size", 32, "--pretrained", *words]
    with pytest.raises(
        UsageError, match=r"^cannot get timm's weights of vit_tiny_patch16_224: no network at all; check"
    ):
        train(images, *words)


def test_resume_with_other_classes(images, train, tmp_path):
    train(images, "--epochs", 1)
    make_split(tmp_path / "other" / "train", ["a", "b", "c"])
    make_split(tmp_path / "other" / "val", ["a", "b", "c"])
    with pytest.raises(UsageError, match="another classes"):
        train(tmp_path / "other", "--epochs", 2, "--resume")


@pytest.mark.parametrize(
    "words, message",
    [
        (["--model", "sot_mirco"], "unknown model sot_mirco: .*sot_micro"),
        (["--opt", "adamv"], "timm refuses the options"),
        (["--aa", "nonsense"], "timm refuses the options"),
        (["--sched", "wsd", "--epochs", "2"], "timm refuses the options: wsd schedule requires"),
        (["--device", "quantum"], "unknown device: --device quantum"),
        (["--device", "cuda:77"], "no such GPU"),
        (["--model", "sot_tiny", "--img-size", "40"], r"cannot build the model sot_tiny: .* nearest: \(32, 32\) or"),
        (["--input-size", "1", "8", "8"], "the model's images have 3 channels: --input-size 1"),
        (["--model-kwargs", "depht=3"], "cannot build the model sot_micro: .*depht"),
        (["--mgcrp-q", "0"], "cannot build the model sot_micro: q_dim"),
        (
            ["--model", "vit_tiny_patch16_224", "--model-kwargs", "depth=1"],
            "vit_tiny_patch16_224 takes no images of 8x8",
        ),
        (["--seed", "-1"], "--seed: must be an integer in"),
        (["--interpolation", "random"], "--interpolation: invalid choice"),
        (["--ratio", "-1", "1"], "--ratio takes a range of positive numbers, not -1 to 1"),
        (["--scale", "0.5", "2"], "--scale takes a range of positive numbers up to 1, not 0.5 to 2"),
        (["--cutmix-minmax", "0.5", "0.5"], "--cutmix-minmax takes a range"),
        (["--opt", "adahessian"], "--opt adahessian needs second derivatives"),
        (["--mean", "1", "2"], "--mean and --std want"),
        (["--warmup-epochs", "300"], "the warm-up of 300 epochs uses up all 300; shorten --warmup-epochs"),
        (["--initial-checkpoint", "nowhere.pth"], r"no such file: .*nowhere\.pth"),
        (["--resume", "nowhere.pth"], r"no such file: .*nowhere\.pth"),
        (["--resume"], "nothing to resume"),
        (["--output", "/proc/none"], "cannot make the output folder: /proc/none"),
        (["--train-split", "nowhere"], "no nowhere folder"),
    ],
)
def test_usage_errors_are_one_line(images, train, words, message):
    with pytest.raises(UsageError, match=message) as info:
        train(images, *words)
    assert "\n" not in str(info.value)
