"""Training from the command line on tiny images: files, restarts, precision, batches of any size, starting points."""

import shutil
from pathlib import Path

import pytest
import timm
import torch
import yaml

from tests.vision.conftest import assert_same_state, load, make_split, rows, weights
from vision.cli.config_file import parse_args
from vision.cli.train_options import train_parser
from vision.evaluation.load_trained import load_trained
from vision.training.saver import Saver
from vision.validate import validate_parser


def test_a_run_leaves_checkpoints_log_picture_and_options(images, train, capsys):
    folder = train(images, "--epochs", 2, "-b", 4)
    assert {"last.pth.tar", "model_best.pth.tar", "curves.png", "options.yaml"} < {p.name for p in folder.iterdir()}
    log = rows(folder)
    assert [row["epoch"] for row in log] == ["0", "1"]
    best = max(float(row["eval_top1"]) for row in log)
    assert f"best top-1: {best:.2f} %, checkpoint {folder.relative_to(folder.parents[1])}" in capsys.readouterr().out
    checkpoint = load(folder)
    assert checkpoint["class_names"] == ["cat", "dog", "owl"]
    assert checkpoint["recipe"]["name"] == checkpoint["arch"] == "sot_micro"
    assert checkpoint["recipe"]["head"]["pooling"] == "mgcrp"
    assert checkpoint["options"]["batch_size"] == 4
    assert checkpoint["progress"]["updates"] == 8
    options = yaml.safe_load((folder / "options.yaml").read_text())
    again = parse_args(train_parser(), ["--config", str(folder / "options.yaml")])
    assert again.data_dir == str(images) == options["data_dir"]
    assert again.model_kwargs == {"depth": 1, "embed_dim": 16, "num_heads": 2}


def test_it_learns(images, train):
    folder = train(images, "--epochs", 12, "-b", 5, "--lr", "5e-3", "--no-aug")
    assert float(rows(folder)[-1]["eval_top1"]) == 100
    assert float(rows(folder)[-1]["train_loss"]) < float(rows(folder)[0]["train_loss"]) - 0.3


MIXED = ["--mixup", 0.8, "--cutmix", 1, "--reprob", 0.5, "--aa", "rand-m9-mstd0.5-inc1", "--drop-path", 0.2]


@pytest.mark.parametrize("stop", ["after an epoch", "within an epoch"])
def test_resume_is_bitwise(images, train, stop):
    """An interrupted run ends with the weights, averages, optimizer and log of one that was not."""
    common = ["--epochs", 3, "-b", 4, *MIXED, "--head-dropout", 0.2, "--model-ema", "--model-ema-decay", 0.8]
    whole = train(images, *common, "--clip-grad", 1, name="whole")
    steps = 4 if stop == "after an epoch" else 6
    part = train(images, *common, "--clip-grad", 1, "--max-steps", steps, name="part")
    assert load(part)["progress"]["updates"] == steps
    assert load(part)["progress"]["step"] == (0 if stop == "after an epoch" else 2)
    resumed = train(images, *common, "--clip-grad", 1, "--resume", "-j", 2, name="part")
    first, second = load(whole), load(resumed)
    for key in ("state_dict", "state_dict_ema", "optimizer", "progress", "amp_scaler", "metric"):
        assert_same_state(first[key], second[key])
    assert rows(whole) == rows(resumed)


def test_checkpoints_within_an_epoch(images, train, monkeypatch, tmp_path):
    common = ["--epochs", 2, "-b", 4]
    kept = []
    save = Saver.save_within_epoch

    def keep(saver, *args):
        kept.append(Path(shutil.copy2(save(saver, *args), tmp_path)))
        return kept[-1]

    monkeypatch.setattr(Saver, "save_within_epoch", keep)
    folder = train(images, *common, "--checkpoint-steps", 3, name="steps")
    assert [path.name for path in kept] == ["recovery-0-3.pth.tar", "recovery-1-6.pth.tar"]
    assert not list(folder.glob("recovery-*"))  # the end of an epoch replaces them
    final = weights(folder)
    resumed = train(images, *common, "--resume", kept[-1], name="other")
    assert_same_state(final, weights(resumed))


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_mixed_precision(images, train, dtype):
    checkpoint = load(train(images, "--epochs", 1, "-b", 4, "--amp", "--amp-dtype", dtype))
    assert (checkpoint["amp_scaler"] != {}) == (dtype == "float16")
    assert all(value.dtype != getattr(torch, dtype) for value in checkpoint["state_dict"].values())


def test_accumulated_batches_equal_one_batch(images, train):
    """Also at the end of the epoch, where batch and update are smaller: 15 images by 6 and by 3 x 2."""
    common = ["--epochs", 1, "--opt", "momentum", "--momentum", 0, "--lr", 0.1, "--warmup-epochs", 0, "--smoothing", 0]
    common += ["--model-kwargs", "depth=1", "embed_dim=16", "num_heads=2", "token_embed=linear"]  # no batch statistics
    whole = weights(train(images, *common, "-b", 6, name="whole"))
    parts = train(images, *common, "-b", 2, "--grad-accum-steps", 3, name="parts")
    assert load(parts)["progress"]["updates"] == 3
    for name, value in weights(parts).items():
        torch.testing.assert_close(value, whole[name], rtol=1e-5, atol=1e-6, msg=name)


def test_clipping_bounds_the_first_update(images, train):
    start = ["--epochs", 1, "-b", 15, "--opt", "momentum", "--momentum", 0, "--lr", 1, "--warmup-epochs", 0]
    start += ["--weight-decay", 0]
    before = weights(train(images, *start, "--lr", 0, name="before"))
    after = weights(train(images, *start, "--clip-grad", 0.01, name="after"))
    trained = [name for name in before if not name.endswith(("running_mean", "running_var", "num_batches_tracked"))]
    change = torch.stack([(after[name] - before[name]).norm() for name in trained]).norm()
    assert change == pytest.approx(0.01, rel=1e-3)


def test_averaged_weights_are_evaluated_too(images, train):
    folder = train(images, "--epochs", 1, "-b", 4, "--model-ema", "--model-ema-decay", 0.5)
    checkpoint = load(folder)
    assert "eval_ema_top1" in rows(folder)[0]
    assert not torch.equal(checkpoint["state_dict"]["cls_token"], checkpoint["state_dict_ema"]["cls_token"])


@pytest.mark.parametrize("batch_size", [1, 7, 100])
def test_any_batch_size_with_mixing(images, train, batch_size):
    """Batches of one, odd ones, a last one of one image (15 = 2 x 7 + 1), and a data set smaller than a batch."""
    checkpoint = load(train(images, "--epochs", 1, "-b", batch_size, "--mixup", 0.8, "--cutmix", 1))
    assert checkpoint["progress"]["updates"] == -(-15 // batch_size)


def test_batch_of_one_with_single_values_in_batch_norm(images, train):
    """ResNet's last maps of an image of 32 are of 1x1: one value a channel, which BatchNorm refuses in training."""
    folder = train(images, "--model", "resnet18", "--model-kwargs", "--img-size", 32, "--epochs", 1, "-b", 7)
    assert load(folder)["progress"]["updates"] == 3


def test_freezing_lets_only_the_head_learn(images, train):
    before = weights(train(images, "--epochs", 1, "--lr", 0, "--freeze-backbone", name="before"))
    after = weights(train(images, "--epochs", 1, "--freeze-backbone", "--weight-decay", 0.1, name="after"))
    changed = {name for name in before if not torch.equal(before[name], after[name])}
    assert changed == {name for name in before if name.startswith("head.")}
    assert any("running_mean" in name for name in before)


def test_the_heads_learning_rate_has_its_own_scale(images, train):
    options = ["--epochs", 1, "-b", 15, "--opt", "momentum", "--momentum", 0, "--warmup-epochs", 0]
    options += ["--weight-decay", 0.1]
    before = weights(train(images, *options, "--lr", 0, name="before"))
    plain = weights(train(images, *options, "--lr", 0.01, name="plain"))
    scaled = weights(train(images, *options, "--lr", 0.01, "--head-lr-scale", 3, name="scaled"))
    for name, factor in (("head.word_fc.weight", 3.0), ("blocks.0.attn.qkv.weight", 1.0)):
        expected = before[name] + factor * (plain[name] - before[name])
        torch.testing.assert_close(scaled[name], expected, rtol=1e-4, atol=1e-7)


@pytest.mark.parametrize("words", [["--layer-decay", 0], ["--freeze-backbone", "--head-lr-scale", 0]])
def test_scales_of_zero(images, train, words):
    """Groups that do not learn do not hide the learning rate."""
    (row,) = rows(train(images, "--epochs", 1, "--warmup-epochs", 0, "--lr", 0.01, "--min-lr", 0.01, *words))
    assert float(row["lr"]) == (0 if "--freeze-backbone" in words else 0.01)


@pytest.mark.parametrize("model", ["resnet18", "vit_tiny_patch16_224"])
def test_the_head_on_any_model(images, train, model):
    kwargs = [] if model == "resnet18" else ["patch_size=8", "embed_dim=16", "depth=1", "num_heads=2"]
    words = ["--model", model, "--model-kwargs", *kwargs, "--img-size", 32, "--epochs", 1]
    words += ["--head-pooling", "mgcrp", "--mgcrp-heads", 2, "--mgcrp-q", 4, "--mgcrp-center", "none"]
    checkpoint = load(train(images, *words))
    head = checkpoint["recipe"]["head"]
    assert (head["num_heads"], head["q_dim"], head["center"]) == (2, 4, None)
    assert checkpoint["state_dict"]["head.word_fc.weight"].shape == (3, 2 * 4 * 4)


def test_both_losses_of_sum_loss(images, train):
    folder = train(images, "--epochs", 1, "--head-fusion", "sum_loss", "--mixup", 0.2)
    assert float(rows(folder)[0]["train_loss"]) > 1.8  # twice that of a classifier of three classes, about 1.1


def test_starting_from_another_checkpoint(images, train, tmp_path):
    """Other classes and another image size: the backbone is taken over, the classifiers start afresh."""
    first = train(images, "--epochs", 1, name="first")
    other = tmp_path / "other"
    for split in ("train", "val"):
        make_split(other / split, ["a", "b"], count=2)
    words = ["--epochs", 1, "--lr", 0, "--img-size", 16, "--initial-checkpoint", first / "last.pth.tar"]
    second = weights(train(other, *words, name="second"))
    old = weights(first)
    assert second["head.word_fc.weight"].shape[0] == 2
    assert torch.equal(second["blocks.0.attn.qkv.weight"], old["blocks.0.attn.qkv.weight"])
    assert torch.equal(second["head.pool.proj.weight"], old["head.pool.proj.weight"])


@pytest.mark.parametrize(
    "model, kwargs, classifiers",
    [
        ("resnet10t", {}, ["fc"]),
        ("deit_tiny_distilled_patch16_224", {"depth": 1, "embed_dim": 16, "num_heads": 2}, ["head", "head_dist"]),
    ],
)
def test_classifiers_of_other_classes_start_afresh(images, train, tmp_path, caplog, model, kwargs, classifiers):
    torch.save(timm.create_model(model, num_classes=5, **kwargs).state_dict(), tmp_path / "five.pth")
    words = ["--model", model, "--model-kwargs", *(f"{name}={value}" for name, value in kwargs.items())]
    words += ["--img-size", 32, "--epochs", 1, "--lr", 0, "--initial-checkpoint", tmp_path / "five.pth"]
    found = weights(train(images, *words))
    assert all(found[f"{name}.weight"].shape[0] == 3 for name in classifiers)
    assert f"{classifiers[-1]}.weight, {classifiers[-1]}.bias are re-initialised" in caplog.text


LVVIT = ("depth=1", "embed_dim=16", "num_heads=2", "stem_width=8", "patch_size=4")


@pytest.mark.parametrize(
    "words, classifiers",
    [
        (["--head-fusion", "sum_fc"], ["head.cls_fc", "head.word_fc"]),
        (["--model", "resnet10t", "--img-size", 32, "--model-kwargs"], ["fc"]),
        (
            ["--model", "lvvit_t", "--token-label", "--dense-weight", 0, "--model-kwargs", *LVVIT],
            ["head.cls_fc", "head.dense_fc"],
        ),
    ],
)
def test_classifiers_of_as_many_other_classes_start_afresh(images, train, tmp_path, caplog, words, classifiers):
    path = train(images, "--epochs", 1, *words, name="first") / "last.pth.tar"
    checkpoint = torch.load(path, weights_only=True)
    for layer in classifiers:
        checkpoint["state_dict"][f"{layer}.bias"].add_(1)
        checkpoint["state_dict"][f"{layer}.weight"].add_(1)
    for names, kept in ((["ant", "dog", "owl"], False), (["cat", "dog", "owl"], True), (None, True)):
        torch.save({**checkpoint, "class_names": names}, tmp_path / "start.pth")
        start = ["--epochs", 1, "--lr", 0, "--initial-checkpoint", tmp_path / "start.pth", "--freeze-backbone"]
        found = weights(train(images, *words, *start, name=f"{names}"))
        same = {name for name, tensor in checkpoint["state_dict"].items() if torch.equal(found[name], tensor)}
        fresh = {f"{layer}.{part}" for layer in classifiers for part in ("weight", "bias")}
        assert found.keys() - same == (set() if kept else fresh)
        assert ("other classes than the data's" in caplog.text) is not kept
        caplog.clear()


def test_the_norm_of_a_plain_classifier_starts_that_of_the_tokens(images, train, tmp_path):
    source = timm.create_model("convnext_atto", num_classes=5)
    torch.nn.init.normal_(source.head.norm.weight)
    torch.save(source.state_dict(), tmp_path / "five.pth")
    words = ["--model", "convnext_atto", "--model-kwargs", "--img-size", 32, "--epochs", 1, "--lr", 0]
    words += ["--head-pooling", "gap", "--initial-checkpoint", tmp_path / "five.pth"]
    assert torch.equal(weights(train(images, *words))["fc_norm.weight"], source.head.norm.weight)


def test_a_plain_classifiers_weights_start_a_model_with_the_head(images, train):
    words = ["--model", "resnet18", "--model-kwargs", "--img-size", 32, "--epochs", 1]
    plain = train(images, *words, name="plain")
    words += ["--lr", 0, "--head-pooling", "gap", "--initial-checkpoint", plain / "last.pth.tar"]
    headed = train(images, *words, name="headed")
    assert torch.equal(weights(headed)["layer4.1.conv2.weight"], weights(plain)["layer4.1.conv2.weight"])


def test_a_checkpoint_rebuilds_its_model(images, train):
    """With later defaults changed or options gone, the checkpoint says all that the model needs."""
    folder = train(
        images, "--epochs", 1, "--head-fusion", "concat", "--mgcrp-k", 5, "--svpn-values", 0, "--svpn-iters", 2
    )
    args = parse_args(validate_parser(), ["DIR", "--checkpoint", str(folder / "last.pth.tar")])
    trained = load_trained(args, torch.device("cpu"))
    config = trained.model.head.config
    assert (config.fusion, config.k_dim, config.num_singular_values) == ("concat", 5, None)
    assert_same_state(dict(trained.model.state_dict()), weights(folder))
    assert trained.class_names == ["cat", "dog", "owl"]
    assert trained.data_config["input_size"] == (3, 8, 8)
