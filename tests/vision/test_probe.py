"""``vision/probe.py``: the store, the table, and the model for the other commands."""

import json

import pytest
import timm
import torch

from sot_base.errors import UsageError
from tests.vision.conftest import make_image
from vision import export, predict, probe, validate
from vision.probing.image_encoder import ImageEncoder

TINY = ("--mgcrp-heads", "2", "--mgcrp-q", "4", "--batch-size", "4", "--epochs", "5", "--seeds", "1", "2")


@pytest.fixture(scope="module", params=["test_vit", "test_resnet"])
def model(request, tmp_path_factory):
    """Name and weights of a small model: with a class token, and with a feature map."""
    torch.manual_seed(0)
    path = tmp_path_factory.mktemp("weights") / f"{request.param}.pth"
    kwargs = {"img_size": 32} if request.param == "test_vit" else {}
    torch.save(timm.create_model(request.param, **kwargs).state_dict(), path)
    return request.param, path


@pytest.fixture
def run(images, tmp_path):
    """Runs the command line; returns what is in results.json."""

    def run_probe(model, *words, data=images):
        name, path = model
        arguments = [data, "--model", name, "--checkpoint", path, "--img-size", "32", "-j", "0", *TINY, *words]
        arguments += ["--output-dir", tmp_path / "out", "--cache-dir", tmp_path / "store", "--encode-batch", "4"]
        assert probe.main([str(word) for word in arguments]) == 0
        return json.loads((tmp_path / "out" / "results.json").read_text())

    return run_probe


def test_the_second_call_reads_the_store_and_the_model_is_one_for_all_commands(
    run, model, images, tmp_path, monkeypatch, capsys
):
    words = ("--heads", "cls", "mgcrp", "gap-words", "--lr", "1e-6", "3e-2", "--held-out", "0.2", "--save", "all")
    words += ("--cache-dtype", "float32")
    first = run(model, *words)
    assert "encoding 21 rows, " in capsys.readouterr().out
    encode = ImageEncoder.encode
    monkeypatch.setattr(
        ImageEncoder, "encode", lambda self, images: encode(self, images) if len(images) == 1 else pytest.fail("ran")
    )
    second = run(model, *words, "--save", "none")
    assert "read from the cache, no encoder was run" in capsys.readouterr().out
    monkeypatch.undo()
    assert list(first["heads"]) == ["cls", "mgcrp", "gap-words"]
    for label, head in first["heads"].items():
        assert head["summary"] == second["heads"][label]["summary"]
        entry = head["seeds"]["2"]
        assert "--encode-batch 4" in entry["command"]
        checkpoint = f"{entry['model']}/model_best.pth.tar"
        monkeypatch.chdir(tmp_path)
        validate.main(
            [str(images), "--checkpoint", checkpoint, "--results", "found.json", "-j", "0", "--device", "cpu"]
        )
        found = json.loads((tmp_path / "found.json").read_text())
        assert found["top1"] == pytest.approx(entry["metrics"]["val"]["top1"], abs=1e-3)
    make_image(1, 5).save(tmp_path / "photo.png")
    capsys.readouterr()
    predict.main(["photo.png", "--checkpoint", checkpoint, "-j", "0", "--device", "cpu", "--format", "json"])
    assert {item["class"] for item in json.loads(capsys.readouterr().out)[0]["top"]} == {"cat", "dog", "owl"}
    export.main(["--checkpoint", checkpoint, "--output", "model.pt2"])
    assert (tmp_path / "model.pt2").exists()


def test_layers_of_a_transformer(run, images, tmp_path):
    torch.manual_seed(0)
    path = tmp_path / "vit.pth"
    torch.save(timm.create_model("test_vit", img_size=32).state_dict(), path)
    vit = ("test_vit", path)
    results = run(vit, "--heads", "gap", "--layers", "1", "-1", "--save", "none")
    last = len(timm.create_model("test_vit").blocks)
    assert list(results["heads"]) == [f"gap --layers {layer}" for layer in (1, last)]
    mixed = run(vit, "--heads", "gap", "--layers", "1", "-1", "--mix-layers", "--save", "none")
    extra = mixed["heads"]["gap"]["parameters"] - results["heads"]["gap --layers 1"]["parameters"]
    assert extra == 3  # two scores and a factor
    for words, message in (
        (("--layers", "0", "--save", "none"), "no such layer of test_vit: --layers 0; give 1 to"),
        (("--layers", "99"), "no such layer: --layers 99"),
        (("--layers", "1"), "an image model reads the last layer: --layers; give --save none"),
    ):
        with pytest.raises(UsageError, match=message):
            run(vit, *words)


def test_several_labels_an_image(run, model, tmp_path):
    for split, count in (("train", 12), ("val", 4)):
        folder = tmp_path / "several" / split
        folder.mkdir(parents=True)
        lines = ["file_name,labels"]
        for number in range(count):
            make_image(number % 3, number).save(folder / f"{number}.png")
            lines.append(f'{number}.png,"{("red", "green,warm", "")[number % 3]}"')
        (folder / "metadata.csv").write_text("\n".join(lines) + "\n")
    words = ("--multi-label", "--heads", "gap-words", "--lr", "3e-2", "--class-weights", "balanced")
    results = run(model, *words, "--held-out", "0", data=tmp_path / "several")
    assert set(results["heads"]["gap-words"]["seeds"]["1"]["metrics"]["val"]) == {"f1_micro", "f1_macro", "exact"}
    saved = torch.load(tmp_path / "out" / "model" / "model_best.pth.tar", weights_only=True)
    assert (saved["multi_label"], saved["class_names"]) == (True, ["green", "red", "warm"])


def test_usage_errors(images, tmp_path):
    common = [str(images), "--output-dir", str(tmp_path / "out")]
    for words, message in (
        (["--model", "test_vit"], "no weights of test_vit: the command line; give --pretrained, --checkpoint FILE, or"),
        (["--model", "test_vot"], "unknown model test_vot"),
        (["--model", "test_vit", "--heads", "svm"], "invalid choice: 'svm'"),
        (["--model", "test_vit", "--hedas", "cls"], "did you mean --heads"),
    ):
        with pytest.raises(UsageError, match=message):
            probe.main([*common, *words])
    assert not (tmp_path / "out").exists()
