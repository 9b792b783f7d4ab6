"""The command lines: training to the end, going on, validating, predicting, and what they refuse."""

import csv
import json
import os
import shutil
import subprocess
import sys

import numpy as np
import pytest
import torch
import yaml
from PIL import Image

from sot_base.errors import UsageError
from tests.support import REPOSITORY
from tests.vision.conftest import assert_same_state, load, weights
from tests.vision.segment.conftest import RECIPE, TINY, make_pair, make_set, rows
from tests.vision.segment.mmseg import mmseg_state
from tests.vision.test_distributed import torchrun
from vision.segment import predict, validate
from vision.segment.palette import bit_palette
from vision.training.finite import NonFiniteError

SHORT = ("-b", 2, "--steps", 4, "--val-steps", 2)


def test_a_few_images_are_learnt_by_heart(trained):
    found = [float(row["miou"]) for row in rows(trained)]
    assert [row["step"] for row in rows(trained)] == ["60", "120"]
    assert found[-1] > 90
    assert load(trained, "model_best")["metrics"]["miou"] == pytest.approx(max(found))
    assert load(trained)["saver"]["best_metric"] == pytest.approx(max(found))
    assert "optimizer" not in load(trained, "model_best")


def check(words, capsys):
    metrics = validate.validate(validate.parse_args(validate.validate_parser(), [*map(str, words), *TINY[-4:]]))
    return metrics, capsys.readouterr().out


def test_validation_finds_what_training_found(shapes, trained, tmp_path, capsys):
    best = trained / "model_best.pth.tar"
    files = ["--per-class", tmp_path / "classes.csv", "--results", tmp_path / "results.json"]
    metrics, out = check([shapes, "--checkpoint", best, "--val-split", "training", *files], capsys)
    expected = load(trained, "model_best")["metrics"]
    assert {key: metrics[key] for key in expected} == pytest.approx(expected)
    assert out.startswith(f"mIoU {expected['miou']:.2f} %, pixel accuracy")
    assert "  class 0: IoU" in out
    with (tmp_path / "classes.csv").open() as file:
        classes = list(csv.DictReader(file))
    assert [row["class"] for row in classes] == [f"class {index}" for index in range(4)]
    assert np.mean([float(row["iou"]) for row in classes]) == pytest.approx(expected["miou"])
    assert json.loads((tmp_path / "results.json").read_text())["images"] == 4


@pytest.mark.parametrize(
    "words",
    [
        ["--no-slide"],
        ["--crop-size", 48, "--stride", 16],
        ["--multi-scale", 0.5, 1, 1.5, "--flip"],
        ["--short-side", 0, "--amp", "--amp-dtype", "float16", "--channels-last"],
    ],
)
def test_other_ways_to_validate(shapes, trained, capsys, words):
    metrics, _ = check([shapes, "--checkpoint", trained / "last.pth.tar", *words], capsys)
    assert 30 < metrics["miou"] <= 100
    assert metrics["images"] == 2


def test_validation_leaves_out_bad_images(shapes, trained, tmp_path, capsys):
    root = shutil.copytree(shapes, tmp_path / "set")
    (root / "annotations" / "validation" / "0.png").write_bytes(b"text")
    words = [root, "--checkpoint", trained / "last.pth.tar"]
    with pytest.raises(UsageError, match=r"annotations/validation/0\.png \(the annotation: it is not an image\)"):
        check(words, capsys)
    metrics, out = check([*words, "--bad-images", "skip"], capsys)
    assert (metrics["images"], metrics["bad_images"]) == (1, 1)
    assert "bad_images: 1" in out
    (root / "annotations" / "validation" / "1.png").write_bytes(b"text")
    with pytest.raises(UsageError, match="no image can be read"):
        check([*words, "--bad-images", "skip"], capsys)


def test_validation_of_mmsegmentations_checkpoint(shapes, tmp_path, capsys):
    torch.save({"state_dict": mmseg_state()}, tmp_path / "upernet.pth")
    kwargs = [f"{key}={value}" for key, value in RECIPE["kwargs"].items()]
    words = [shapes, "--checkpoint", tmp_path / "upernet.pth", "--model", "lvvit_t", "--model-kwargs", *kwargs]
    assert check([*words, "--crop-size", 64, "--short-side", 64], capsys)[0]["images"] == 2


def test_options_of_validation_in_a_file(shapes, trained, tmp_path, capsys):
    path = tmp_path / "options.yaml"
    path.write_text(f"checkpoint: {trained / 'last.pth.tar'}\ndata_dir: {shapes}\nflip: true\n")
    assert check(["--config", path], capsys)[0]["images"] == 2
    with pytest.raises(UsageError, match="no weights: give --checkpoint PATH"):
        check([shapes], capsys)
    with pytest.raises(UsageError, match="no data: DIR"):
        check(["--checkpoint", trained / "last.pth.tar"], capsys)


def test_compiled(shapes, trained, train, monkeypatch, capsys):
    compiled = []
    monkeypatch.setattr(torch, "compile", lambda model, **kwargs: compiled.append(model) or model)
    check([shapes, "--checkpoint", trained / "last.pth.tar", "--compile"], capsys)
    train(shapes, *SHORT, "--compile", "--max-steps", 1)
    assert len(compiled) == 2


@pytest.mark.parametrize("stop, words", [(2, ()), (3, ("--dice-weight", 1, "--clip-grad", 1, "--layer-decay", 0.8))])
def test_a_run_goes_on_bitwise(shapes, train, stop, words):
    straight = train(shapes, *SHORT, *words, name="straight")
    train(shapes, *SHORT, *words, "--max-steps", stop, name="parts")
    parts = train(shapes, *SHORT, *words, "--resume", name="parts")
    first, second = load(straight), load(parts)
    for key in ("state_dict", "optimizer", "progress", "saver", "amp_scaler"):
        assert_same_state(first[key], second[key])
    assert (straight / "summary.csv").read_text() == (parts / "summary.csv").read_text()
    assert first["progress"]["updates"] == 4


def test_saves_between_validations(shapes, train, monkeypatch):
    from vision.training import saver as module

    saved = []
    save = module.save_checkpoint
    monkeypatch.setattr(
        module, "save_checkpoint", lambda path, content: (saved.append((path.name, content)), save(path, content))
    )
    train(shapes, "-b", 2, "--steps", 5, "--val-steps", 100, "--checkpoint-steps", 2)
    names = [(name, content.get("progress", {}).get("updates")) for name, content in saved]
    assert names == [("last.pth.tar", 2), ("last.pth.tar", 4), ("model_best.pth.tar", None), ("last.pth.tar", 5)]


def test_resume_wants_the_same_run(shapes, train, trained):
    folder = train(shapes, *SHORT, "--max-steps", 1)
    for words, message in (
        (["--decoder-channels", 24], "another decoder_channels, 16 instead of 24"),
        (["--no-reduce-zero-label", "--num-classes", 5], "another num_classes, 4 instead of 5"),
        (["--no-reduce-zero-label"], "another rules"),
        (["-b", 3], "another images_per_step, 2 instead of 3"),
        (["--opt", "sgd"], "another opt, adamw instead of sgd"),
        (["--layer-decay", 0.9], "another layer_decay, None instead of 0.9"),
    ):
        with pytest.raises(UsageError, match=f"--resume: the checkpoint has {message}"):
            train(shapes, *SHORT, *words, "--resume")
    with pytest.raises(UsageError, match=r"--resume continues from the last\.pth\.tar of a run"):
        train(shapes, *SHORT, "--resume", trained / "model_best.pth.tar")
    with pytest.raises(UsageError, match=r"a run is in .* already; add --resume"):
        train(shapes, *SHORT)
    assert load(folder)["progress"]["updates"] == 1


def test_first_weights(shapes, train, trained, tmp_path):
    """Without a learning rate the weights stay what the checkpoint says."""
    source = weights(trained)
    still = [*SHORT, "--max-steps", 1, "--lr", 0]
    folder = train(shapes, *still, "--initial-checkpoint", trained / "last.pth.tar", name="initial")
    assert all(torch.equal(source[name], tensor) for name, tensor in weights(folder).items() if "weight" in name)
    lead = "encoder.backbone."
    backbone = {name.removeprefix(lead): tensor for name, tensor in source.items() if name.startswith(lead)}
    torch.save(backbone, tmp_path / "backbone.pth")
    found = weights(train(shapes, *still, "--backbone-checkpoint", tmp_path / "backbone.pth", name="backbone"))
    assert torch.equal(found[f"{lead}blocks.3.mlp.fc1.weight"], source[f"{lead}blocks.3.mlp.fc1.weight"])
    assert not torch.equal(found["decoder.psp.out_conv.0.weight"], source["decoder.psp.out_conv.0.weight"])
    with pytest.raises(
        UsageError, match="--backbone-checkpoint and --initial-checkpoint each give the backbone's weights"
    ):
        train(shapes, *still, "--backbone-checkpoint", "a.pth", "--initial-checkpoint", "b.pth", name="both")


def test_pretrained_weights_that_do_not_exist(shapes, train):
    with pytest.raises(UsageError, match=r"^no released weights: sot_tiny; give the file of weights as"):
        train(shapes, "--model", "sot_tiny", "--model-kwargs", "depth=4", "--pretrained")
    with pytest.raises(UsageError, match=r"^not downloaded, SOT_OFFLINE is set: \S+/lvvit_t\.pth; "):
        train(shapes, "--pretrained")


def test_dry_run_writes_nothing(shapes, train, tmp_path, capsys):
    train(shapes, *SHORT, "--dry-run", "--class-limit", 1)
    out = capsys.readouterr().out
    assert "loss of the first 4 images: " in out
    assert "steps: 4" in out
    assert list(tmp_path.iterdir()) == []


def test_options_in_a_file(shapes, train, tmp_path):
    folder = train(shapes, *SHORT, "--max-steps", 1, "--scale", 0.75, 1.5)
    options = yaml.safe_load((folder / "options.yaml").read_text())
    assert options["scale"] == [0.75, 1.5]
    (tmp_path / "more.yaml").write_text("max_steps: 1\nb: 2\nreduce_zero_label: false\nnum_classes: 5\nsteps: 4\n")
    folder = train(shapes, "--config", tmp_path / "more.yaml", "--num-classes", 6, name="file")
    assert load(folder)["data"]["rules"] == {"ignore_index": 255, "reduce_zero_label": False}
    assert load(folder)["segmenter"]["num_classes"] == 6


def test_other_options_of_training(shapes, train, tmp_path):
    (tmp_path / "names.txt").write_text("ground\nred\ngreen\nblue\n")
    words = [
        "--class-names",
        tmp_path / "names.txt",
        "--neck",
        "pyramid",
        "--aux-channels",
        0,
        "--out-indices",
        0,
        1,
        2,
        3,
    ]
    words += ["--sched", "cosine", "--warmup-steps", 1, "--min-lr", "1e-6", "--opt", "sgd", "--weight-decay", 0.1]
    words += ["--amp", "--channels-last", "--mean", 0.4, 0.4, 0.4, "--std", 0.2, 0.2, 0.2, "--short-side", 48, "--flip"]
    found = load(train(shapes, *SHORT, *words, "--log-interval", 1, "--seed", 7))
    assert found["data"]["class_names"] == ["ground", "red", "green", "blue"]
    assert found["data"]["images"] == {"mean": [0.4] * 3, "std": [0.2] * 3, "short_side": 48}
    assert found["segmenter"]["neck"] == "pyramid"
    assert not any(name.startswith("aux_head") for name in found["state_dict"])


def test_the_learning_rate_falls_in_a_straight_line(shapes, train):
    words = ["-b", 1, "--steps", 8, "--val-steps", 1, "--warmup-steps", 2, "--lr", "1e-3", "--poly-power"]
    found = [float(row["lr"]) for row in rows(train(shapes, *words, 1))]
    expected = [0.5, *(1 - step / 8 for step in range(2, 9))]
    assert found == pytest.approx([1e-3 * value for value in expected], abs=1e-8)


def test_one_image_a_step_trains(shapes, train):
    """The pyramid's pooling to one value has no variance in a batch of one."""
    (row,) = rows(train(shapes, "-b", 1, "--steps", 2, "--val-steps", 2))
    assert float(row["train_loss"]) > 0


def test_bad_images_in_training(shapes, train, tmp_path):
    root = shutil.copytree(shapes, tmp_path / "set")
    Image.new("L", (64, 64), 9).save(root / "annotations" / "training" / "1.png")
    with pytest.raises(UsageError, match=r"training/1\.png \(the annotation has the value 9, the classes are 1 to 4\)"):
        train(root, *SHORT, name="error")
    folder = train(root, "-b", 1, "--steps", 4, "--val-steps", 4, "--bad-images", "skip", name="skip")
    assert rows(folder)[0]["bad_images"] == "1"
    for path in (root / "images" / "training").iterdir():
        path.write_bytes(b"text")
    with pytest.raises(UsageError, match="nothing to learn: no image can be read"):
        train(root, "-b", 1, "--steps", 2, "--val-steps", 2, "--bad-images", "skip", name="nothing")


def test_a_loss_that_is_not_finite_stops_with_the_last_good_checkpoint(shapes, train, monkeypatch):
    from vision.segment import session

    normalize = session.normalize
    calls = []

    def spoil(*args):
        calls.append(1)
        return normalize(*args) * (float("inf") if len(calls) == 4 else 1)

    monkeypatch.setattr(session, "normalize", spoil)
    message = r"the loss is nan: step 3, lr .*first in the images; .*the last good checkpoint: runs/run/last\.pth\.tar"
    with pytest.raises(NonFiniteError, match=message):
        train(shapes, *SHORT)


def test_training_wants_data():
    from vision.segment import train as module

    with pytest.raises(UsageError, match="no data: DIR"):
        module.main([*TINY, "--resume"])


@pytest.mark.parametrize(
    "words, message",
    [
        (["--ignore-index", 3], "--ignore-index 3 is a class"),
        (["--scale", 2, 1], "--scale takes the smaller number first"),
        (["--steps", 5, "--warmup-steps", 5], "the warm-up of 5 steps uses up all 5"),
        (["--opt", "nonsense"], "timm refuses the options"),
        (["--train-split", "nowhere"], "no images: .*images/nowhere"),
        (["--nonsense"], "unknown option --nonsense"),
    ],
)
def test_options_that_do_not_fit(shapes, train, words, message):
    with pytest.raises(UsageError, match=message):
        train(shapes, *words)


def run_predict(*words):
    return predict.predict(predict.parse_args(predict.predict_parser(), [*map(str, words), "--device", "cpu"]))


class TestPredict:
    def test_pictures(self, shapes, trained, tmp_path):
        make_pair(0)[0].save(tmp_path / "photo.png")
        words = ["--checkpoint", trained / "last.pth.tar", "--output", tmp_path / "out", "--overlay"]
        written = run_predict(tmp_path / "photo.png", *words)
        assert [path.name for path in written] == ["photo.png", "photo_color.png", "photo_overlay.png"]
        values, colors, overlay = (np.asarray(Image.open(path)) for path in written)
        expected = np.asarray(make_pair(0)[1])
        assert (values == expected).mean() > 0.9
        assert set(np.unique(values)) <= {1, 2, 3, 4}
        assert np.array_equal(colors, bit_palette(5)[values])
        image = np.asarray(make_pair(0)[0]).astype(float)
        assert np.abs(overlay - (image + colors) / 2).max() <= 1

    def test_folders_palette_and_bad_images(self, trained, tmp_path, capsys):
        (tmp_path / "photos" / "more").mkdir(parents=True)
        make_pair(1, 40)[0].save(tmp_path / "photos" / "more" / "a.jpg")
        (tmp_path / "photos" / "b.jpg").write_bytes(b"text")
        (tmp_path / "palette.txt").write_text("#000000\n#ffffff\n#ff0000\n#00ff00\n")
        words = ["--checkpoint", trained / "last.pth.tar", "--output", tmp_path / "out"]
        words += ["--palette", tmp_path / "palette.txt", "--multi-scale", 1, 1.5, "--flip"]
        with pytest.raises(UsageError, match=r"photos/b\.jpg \(it is not an image\)"):
            run_predict(tmp_path / "photos", *words)
        predict.main([*map(str, [tmp_path / "photos", *words]), "--device", "cpu", "--bad-images", "skip"])
        assert capsys.readouterr().out == "2 files written\n"
        values = np.asarray(Image.open(tmp_path / "out" / "more" / "a.png"))
        colors = np.asarray(Image.open(tmp_path / "out" / "more" / "a_color.png"))
        palette = np.array([[0, 0, 0], [255, 255, 255], [255, 0, 0], [0, 255, 0]])
        assert values.shape == (40, 40)
        assert np.array_equal(colors, palette[values - 1])

    def test_errors(self, trained, tmp_path):
        words = ["--checkpoint", trained / "last.pth.tar", "--output", tmp_path / "out"]
        with pytest.raises(UsageError, match="nowhere to write: give --output FOLDER"):
            run_predict(tmp_path / "nowhere.png", *words[:2])
        with pytest.raises(UsageError, match="no such image"):
            run_predict(tmp_path / "nowhere.png", *words)
        for folder in "ab":
            (tmp_path / folder).mkdir()
            make_pair(1)[0].save(tmp_path / folder / "x.png")
        with pytest.raises(UsageError, match=r"two images with one result, x\.png"):
            run_predict(tmp_path / "a", tmp_path / "b", *words)
        with pytest.raises(UsageError, match="holds lvvit_t, not lvvit_s"):
            run_predict(tmp_path / "a", *words, "--model", "lvvit_s")


@pytest.mark.e2e
def test_a_mistake_is_one_line_and_status_2(tmp_path):
    command = [sys.executable, str(REPOSITORY / "vision" / "segment" / "train.py"), "nowhere", *TINY]
    process = subprocess.run(
        command, capture_output=True, text=True, cwd=tmp_path, env=os.environ | {"OMP_NUM_THREADS": "1"}, timeout=300
    )
    assert process.returncode == 2
    assert process.stderr.startswith("error: no such folder or tar: ")
    assert process.stderr.count("\n") == 1


@pytest.mark.e2e
@pytest.mark.slow
def test_two_processes_equal_one_with_twice_the_batch(train, tmp_path):
    """The first step's gradient, BatchNorm over both processes included, and the validation by both.

    In one image few pixels count, so that the processes' shares of the loss differ.
    """
    shapes = make_set(tmp_path / "shapes", {"training": 4, "validation": 3})
    annotation = shapes / "annotations" / "training" / "0.png"
    values = np.array(Image.open(annotation))
    values[8:] = 0
    Image.fromarray(values).save(annotation)
    common = [
        "--steps",
        10,
        "--max-steps",
        1,
        "--val-steps",
        1,
        "--warmup-steps",
        0,
        "--opt",
        "sgd",
        "--weight-decay",
        0,
    ]
    common += ["--drop", 0, "--drop-path", 0, "--class-limit", 1, "--scale", 1, 1]
    start = weights(train(shapes, *common, "-b", 4, "--lr", 0, name="start"))
    alone = train(shapes, *common, "-b", 4, "--lr", 0.1, name="one")
    words = [*TINY, *common, "-b", 2, "--lr", 0.1, "--output", "runs", "--experiment", "two"]
    process = torchrun(tmp_path, "segment/train.py", shapes, *words)
    assert process.returncode == 0, process.stderr[-3000:]
    together = tmp_path / "runs" / "two"
    for name, value in weights(alone).items():
        if not name.endswith("num_batches_tracked"):
            change, expected = weights(together)[name] - start[name], value - start[name]
            torch.testing.assert_close(change, expected, rtol=1e-3, atol=1e-5, msg=name)
    assert not torch.equal(weights(alone)["segmentation_head.0.weight"], start["segmentation_head.0.weight"])
    first, second = rows(alone)[0], rows(together)[0]
    assert float(first["train_loss"]) == pytest.approx(float(second["train_loss"]), rel=1e-4)
    assert float(first["miou"]) == pytest.approx(float(second["miou"]), abs=0.5)
