"""Validation: the figures of training again, files, ImageNet's subsets and labels, checkpoints from elsewhere."""

import csv
import json
import shutil

import pytest
import timm
import torch

from sot_base.errors import UsageError
from tests.vision.conftest import load, make_image, make_split, rows, save_imagenet_model
from tests.vision.models.weights.test_published_names import published_names
from vision import validate as module
from vision.cli.config_file import parse_args
from vision.data.classes import imagenet_a_names, imagenet_names
from vision.evaluation.metrics import ClassEvaluator

QUICK = ("--device", "cpu", "-j", "0")


def validate(*words):
    return module.validate(parse_args(module.validate_parser(), [str(word) for word in words]))


@pytest.mark.parametrize("weights, column", [("raw", "eval_"), ("ema", "eval_ema_"), ("auto", "eval_ema_")])
def test_the_figures_of_training_again(images, trained, weights, column):
    checkpoint = trained / "last.pth.tar"
    metrics = validate(images, "--checkpoint", checkpoint, "--weights", weights, "-b", 4, *QUICK)
    row = rows(trained)[-1]
    for name in ("top1", "top5", "loss"):
        assert metrics[name] == pytest.approx(float(row[column + name]), abs=1e-5)
    assert metrics["images"] == 6


def test_report_and_files(images, trained, tmp_path, capsys):
    words = ["--per-class", tmp_path / "classes.csv", "--confusion", tmp_path / "confusion.png"]
    words += ["--results", tmp_path / "results.json"]
    metrics = validate(images, "--checkpoint", trained / "last.pth.tar", *words, *QUICK)
    out = capsys.readouterr().out
    assert f"top-1 {metrics['top1']:.2f} %, top-5 100.00 %" in out
    assert "6 images, ema weights" in out
    with (tmp_path / "classes.csv").open() as file:
        classes = list(csv.DictReader(file))
    assert [(row["class"], row["images"]) for row in classes] == [("cat", "2"), ("dog", "2"), ("owl", "2")]
    results = json.loads((tmp_path / "results.json").read_text())
    assert results["top1"] == metrics["top1"]
    assert [row["class"] for row in results["per_class"]] == ["cat", "dog", "owl"]
    assert (tmp_path / "confusion.png").read_bytes().startswith(b"\x89PNG")
    assert {path.name for path in tmp_path.iterdir()} == {"classes.csv", "confusion.png", "results.json"}
    with pytest.raises(UsageError, match=r"unknown picture format: .*confusion\.xyz"):
        validate(images, "--checkpoint", trained / "last.pth.tar", "--confusion", tmp_path / "confusion.xyz", *QUICK)


def test_calibration(images, trained, tmp_path):
    metrics = validate(
        images, "--checkpoint", trained / "last.pth.tar", "--calibration", tmp_path / "calibration.png", *QUICK
    )
    assert 0.0 <= metrics["calibration_error"] <= 1.0
    assert (tmp_path / "calibration.png").read_bytes().startswith(b"\x89PNG")


def test_the_figures_are_printed_before_a_file_fails(images, trained, tmp_path, capsys):
    (tmp_path / "file").write_text("")
    with pytest.raises(OSError, match="file"):
        validate(images, "--checkpoint", trained / "last.pth.tar", "--results", tmp_path / "file" / "r.json", *QUICK)
    assert "6 images, ema weights" in capsys.readouterr().out


def test_fewer_and_unknown_classes(images, trained, tmp_path):
    val = shutil.copytree(images / "val", tmp_path / "val")
    shutil.rmtree(val / "cat")
    assert validate(tmp_path, "--checkpoint", trained / "last.pth.tar", *QUICK)["images"] == 4
    assert validate(val, "--val-split", ".", "--checkpoint", trained / "last.pth.tar", *QUICK)["images"] == 4
    make_split(val, ["zebra"])
    with pytest.raises(UsageError, match=r"unknown class zebra: .*val; the model knows 3 classes: cat, dog, owl"):
        validate(tmp_path, "--checkpoint", trained / "last.pth.tar", *QUICK)


def test_a_bad_image_is_never_replaced(images, trained, tmp_path, capsys):
    val = shutil.copytree(images / "val", tmp_path / "val")
    (val / "owl" / "101.png").write_bytes(b"text")
    words = [tmp_path, "--checkpoint", trained / "last.pth.tar", *QUICK]
    with pytest.raises(UsageError, match=r"owl/101\.png \(it is not an image\)"):
        validate(*words)
    metrics = validate(*words, "--bad-images", "skip")
    assert (metrics["images"], metrics["bad_images"]) == (5, 1)
    assert "bad_images: 1" in capsys.readouterr().out


@pytest.mark.parametrize(
    "words, size, layout, dtype",
    [
        ([], (8, 8), torch.contiguous_format, torch.float32),
        (["--img-size", 16], (16, 16), torch.contiguous_format, torch.float32),
        (["--input-size", 3, 8, 12], (8, 12), torch.contiguous_format, torch.float32),
        (["--channels-last"], (8, 8), torch.channels_last, torch.float32),
        (["--amp"], (8, 8), torch.contiguous_format, torch.bfloat16),
        (["--amp", "--amp-dtype", "float16"], (8, 8), torch.contiguous_format, torch.float16),
    ],
)
def test_other_image_sizes_and_formats(images, trained, monkeypatch, words, size, layout, dtype):
    """The model is called with images of the size and layout that are asked for, and computes in that precision."""
    seen, load = [], module.load_trained

    def load_watched(*args):
        found = load(*args)
        found.model.register_forward_hook(lambda model, inputs, output: seen.append((inputs[0], output)))
        return found

    monkeypatch.setattr(module, "load_trained", load_watched)
    metrics = validate(images, "--checkpoint", trained / "last.pth.tar", "-b", 6, *words, *QUICK)
    assert metrics["images"] == 6
    pixels, logits = seen[-1]
    assert pixels.shape == (6, 3, *size)
    assert pixels.is_contiguous(memory_format=layout)
    assert logits.dtype == dtype


def test_compiled(images, trained, monkeypatch):
    """With another backend, for the usual one takes long; training has a test with that one."""
    words = [images, "--checkpoint", trained / "last.pth.tar", "-b", 4, *QUICK]
    expected = validate(*words)["loss"]
    compiled, compile_model = [], torch.compile
    monkeypatch.setattr(torch, "compile", lambda model: compiled.append(model) or compile_model(model, backend="eager"))
    assert validate(*words, "--compile")["loss"] == pytest.approx(expected, abs=1e-5)
    assert len(compiled) == 1


def test_a_size_that_does_not_fit(images, trained):
    with pytest.raises(UsageError, match=r"cannot resize sot_micro: .* nearest: \(8, 8\) or \(10, 10\)"):
        validate(images, "--checkpoint", trained / "last.pth.tar", "--img-size", 9, *QUICK)


def test_a_model_without_variable_input_is_built_anew(images, train):
    """CaiT has no set_input_size; a convolutional network takes any size."""
    kwargs = ["--model-kwargs", "patch_size=4", "embed_dim=16", "depth=1", "depth_token_only=1", "num_heads=2"]
    cait = train(images, "--model", "cait_xxs24_224", *kwargs, "--epochs", 1, "--head-pooling", "gap", name="cait")
    assert validate(images, "--checkpoint", cait / "last.pth.tar", "--img-size", 16, *QUICK)["images"] == 6
    words = ["--model", "resnet10t", "--model-kwargs", "--img-size", 32, "--epochs", 1]
    resnet = train(images, *words, name="resnet")
    assert validate(images, "--checkpoint", resnet / "last.pth.tar", "--img-size", 64, *QUICK)["images"] == 6


def test_checkpoints_that_cannot_be_used(images, trained, tmp_path):
    path = tmp_path / "weights.pth"
    torch.save(load(trained)["state_dict"], path)
    with pytest.raises(UsageError, match=r"does not say its model: .*weights\.pth; give its name"):
        validate(images, "--checkpoint", path, *QUICK)
    with pytest.raises(UsageError, match="holds sot_micro, not sot_tiny"):
        validate(images, "sot_tiny", "--checkpoint", trained / "last.pth.tar", *QUICK)
    (tmp_path / "text.safetensors").write_text("text")
    with pytest.raises(UsageError, match=r"the file is cut off or damaged .*text\.safetensors"):
        validate(images, "sot_micro", "--checkpoint", tmp_path / "text.safetensors", *QUICK)
    (tmp_path / "text.pth").write_text("export W=1\n")  # torch's reader takes this for a pickle
    with pytest.raises(UsageError, match=r"not a checkpoint: .*text\.pth"):
        validate(images, "sot_micro", "--checkpoint", tmp_path / "text.pth", *QUICK)
    with pytest.raises(UsageError, match="has no ema weights"):
        validate(images, "sot_micro", "--checkpoint", path, "--weights", "ema", *QUICK)
    with pytest.raises(UsageError, match="no weights: give --checkpoint PATH"):
        validate(images, "sot_micro", *QUICK)


def test_bare_weights_with_their_models_name(images, trained, tmp_path):
    """The weights alone, as other tools save them: the model is named, its classes are the data's."""
    path = tmp_path / "weights.pth"
    torch.save({f"module.{name}": value for name, value in load(trained)["state_dict_ema"].items()}, path)
    kwargs = ["--model-kwargs", "depth=1", "embed_dim=16", "num_heads=2", "--img-size", 8]
    found = validate(images, "sot_micro", "--checkpoint", path, *kwargs, *QUICK)
    own = validate(images, "--checkpoint", trained / "last.pth.tar", *QUICK)
    assert found["loss"] == pytest.approx(own["loss"], abs=1e-6)


def test_weights_of_a_model_whose_classifier_is_called_classifier(images, tmp_path):
    model = timm.create_model("mobilenetv3_small_050", num_classes=3)
    torch.save({"arch": "mobilenetv3_small_050", "state_dict": model.state_dict()}, tmp_path / "timm.pth")
    found = validate(images, "--checkpoint", tmp_path / "timm.pth", "--img-size", 32, *QUICK)
    assert found["images"] == 6


def test_a_published_checkpoint(tmp_path, capsys):
    model = timm.create_model("SoT_Tiny")
    torch.save({"arch": "SoT_Tiny", "state_dict": published_names(model)}, tmp_path / "SoT_Tiny.pth.tar")
    make_split(tmp_path / "val", imagenet_names()[:2], count=1)
    words = [tmp_path, "SoT_Tiny", "--b", 256, "--eval_checkpoint", tmp_path / "SoT_Tiny.pth.tar", *QUICK]
    assert validate(*words)["images"] == 2
    assert "tench" in capsys.readouterr().out  # names, not numbers


@pytest.fixture(scope="module")
def imagenet(tmp_path_factory):
    """A model of 1,000 classes and images of eight synsets of ImageNet-A under ImageNet's validation names."""
    root = tmp_path_factory.mktemp("imagenet")
    words = save_imagenet_model(root / "model.pth")
    names = imagenet_a_names()[:8]
    for number, name in enumerate(names, start=1):
        (root / "val" / name).mkdir(parents=True)
        make_image(number, number).save(root / "val" / name / f"ILSVRC2012_val_{number:08d}.JPEG")
    return root, [root, "sot_micro", "--checkpoint", root / "model.pth", *words], names


def test_imagenet_a_predicts_its_own_classes_alone(imagenet, tmp_path):
    _, words, names = imagenet
    allowed = {imagenet_names().index(name) for name in imagenet_a_names()}
    evaluator = ClassEvaluator(1000, allowed=sorted(allowed), confusion=True)
    evaluator.update(torch.randn(64, 1000), torch.tensor(sorted(allowed)[:64]))
    assert set(evaluator.confusion.view(1000, 1000).sum(0).nonzero().flatten().tolist()) <= allowed
    plain, among_200 = validate(*words), validate(*words, "--IN_A")
    assert among_200["loss"] < plain["loss"] - 1  # of 200 classes instead of 1,000
    make_split(tmp_path / "val", [*names, "n01440764"], count=1)
    with pytest.raises(UsageError, match="the data has n01440764, none of ImageNet-A's 200 classes"):
        validate(tmp_path, *words[1:], "--imagenet-a")


def test_imagenet_a_needs_imagenets_classes(images, trained):
    with pytest.raises(UsageError, match="--imagenet-a needs a model of ImageNet's classes"):
        validate(images, "--checkpoint", trained / "last.pth.tar", "--imagenet-a", *QUICK)


def test_real_labels(imagenet, tmp_path, capsys):
    root, words, _ = imagenet
    predictions = tmp_path / "predictions.json"
    from vision import predict

    predict.main([str(word) for word in (root, "--model", *words[1:], "--format", "json", "--output", predictions)])
    order = {name: index for index, name in enumerate(imagenet_names())}
    best = {row["image"][-13:-5]: order[row["class"]] for row in json.loads(predictions.read_text())}
    labels = [[best[f"{number:08d}"]] for number in range(1, 9)]
    labels[2], labels[5] = [(labels[2][0] + 1) % 1000], []  # one wrong, one without a label
    (tmp_path / "real.json").write_text(json.dumps(labels))
    metrics = validate(*words, "--real-labels", tmp_path / "real.json")
    assert metrics["real_top1"] == pytest.approx(100 * 6 / 7)
    assert "real_top1" in capsys.readouterr().out
    with pytest.raises(UsageError, match="not all of ImageNet's validation images by name: 8 images"):
        validate(*words, "--real-labels")  # timm's labels are those of 50,000 images


def test_real_labels_of_other_data(images, trained, imagenet, tmp_path):
    with pytest.raises(UsageError, match="--real-labels needs a model of ImageNet's 1,000 classes"):
        validate(images, "--checkpoint", trained / "last.pth.tar", "--real-labels", *QUICK)
    _, words, names = imagenet
    make_split(tmp_path / "val", names, count=1)
    (tmp_path / "real.json").write_text("[[1], [2], [3], [4], [5], [6], [7], [8]]")
    with pytest.raises(UsageError, match=r"validation images by name: .*n01498041/\d\.png; leave it out"):
        validate(tmp_path, *words[1:], "--real-labels", tmp_path / "real.json")
    (tmp_path / "bad.json").write_text("{")
    with pytest.raises(UsageError, match=r"not a JSON file .*bad\.json"):
        validate(*words, "--real-labels", tmp_path / "bad.json")


def test_dry_run(images, trained, capsys):
    assert validate(images, "--checkpoint", trained / "last.pth.tar", "--dry-run", *QUICK) == {}
    out = capsys.readouterr().out
    assert "weights: ema" in out
    assert "loss of the first 6 images: " in out


def test_digits_need_no_folder(train):
    folder = train("--dataset=digits", "--epochs", 1, "-b", 200, "--max-steps", 1)
    metrics = validate("--checkpoint", folder / "last.pth.tar", *QUICK)
    assert metrics["images"] == 360
    assert metrics["top1"] == pytest.approx(float(rows(folder)[-1]["eval_top1"]))
