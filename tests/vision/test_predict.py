"""Prediction: names and probabilities in three formats, images of every mode, files that cannot be read."""

import csv
import io
import json

import pytest
import torch
from PIL import Image

from sot_base.errors import UsageError
from tests.vision.conftest import load, make_image, save_imagenet_model
from vision import predict as module
from vision.data.classes import imagenet_names

QUICK = ("--device", "cpu", "-j", "0")


@pytest.fixture
def predict(trained, capsys):
    def run(*words, checkpoint=trained / "last.pth.tar"):
        module.main([*map(str, words), "--checkpoint", str(checkpoint), *QUICK])
        return capsys.readouterr().out

    return run


@pytest.fixture
def photos(tmp_path):
    """Images of every mode, in a folder and a folder within."""
    folder = tmp_path / "photos" / "more"
    folder.mkdir(parents=True)
    photo = make_image(0, 0)
    for mode, kind in (("RGB", "jpg"), ("P", "png"), ("RGBA", "png"), ("LA", "png"), ("1", "png"), ("CMYK", "jpg")):
        photo.convert(mode).save(folder / f"{mode}.{kind}")
    (folder / "notes.txt").write_text("no image")
    photo.save(tmp_path / "photos" / "one.webp", lossless=True)
    return tmp_path / "photos"


def test_text(predict, photos):
    lines = predict(photos, "--topk", 2).splitlines()
    assert len(lines) == 7
    for line in lines:
        names = line.split(": ")[1].split(", ")
        assert len(names) == 2
        assert all(name.split()[0] in ("cat", "dog", "owl") for name in names)


def test_json(predict, photos):
    rows = json.loads(predict(photos, "--format", "json"))
    for row in rows:
        assert [row["class"], row["probability"]] == [row["top"][0][key] for key in ("class", "probability")]
        assert sum(item["probability"] for item in row["top"]) == pytest.approx(1, abs=1e-4)
    (one,) = json.loads(predict(photos / "one.webp", "--format", "json"))
    assert one == next(row for row in rows if row["image"] == one["image"])


def test_csv_and_a_file_of_output(predict, photos, tmp_path):
    path = tmp_path / "new" / "predictions.csv"
    assert predict(photos, "--format", "csv", "--topk", 3, "--output", path) == ""
    rows = list(csv.DictReader(io.StringIO(path.read_text())))
    assert len(rows) == 7 * 3
    assert [row["rank"] for row in rows[:3]] == ["1", "2", "3"]


def test_a_batch_says_what_each_image_says_alone(predict, photos):
    def probabilities(*words):
        return {row["image"]: row["top"] for row in json.loads(predict(photos, "--format", "json", *words))}

    together, alone = probabilities(), probabilities("-b", 1, "--channels-last")
    for image, top in together.items():
        assert [item["class"] for item in top] == [item["class"] for item in alone[image]]
        assert top[0]["probability"] == pytest.approx(alone[image][0]["probability"], abs=1e-5)


def test_files_that_cannot_be_read(predict, photos, tmp_path):
    (photos / "bad.jpg").write_bytes(b"text")
    with pytest.raises(UsageError, match=r"cannot read an image: .*bad\.jpg \(it is not an image\)"):
        predict(photos)
    assert len(predict(photos, "--bad-images", "skip").splitlines()) == 7
    with pytest.raises(UsageError, match=r"no such image: .*/absent"):
        predict(tmp_path / "absent")
    (tmp_path / "empty").mkdir()
    with pytest.raises(UsageError, match=r"no images: .*/empty"):
        predict(tmp_path / "empty")


def test_the_head_on_another_model(predict, photos, images, train):
    words = ["--model", "resnet10t", "--model-kwargs", "--img-size", 32, "--epochs", 1, "--head-pooling", "gap"]
    assert len(predict(photos, checkpoint=train(images, *words) / "last.pth.tar").splitlines()) >= 7


def test_classes_of_a_checkpoint_without_names(predict, photos, tmp_path, trained):
    words = save_imagenet_model(tmp_path / "imagenet.pth")
    model = ["--model", "sot_micro", *words]
    rows = json.loads(predict(photos, *model, "--format", "json", checkpoint=tmp_path / "imagenet.pth"))
    assert {item["class"] for row in rows for item in row["top"]} < set(imagenet_names())
    assert all(item["description"] != item["class"] for item in rows[0]["top"])
    torch.save(load(trained)["state_dict"], tmp_path / "weights.pth")
    with pytest.raises(UsageError, match="the checkpoint names no classes"):
        predict(photos, *model, checkpoint=tmp_path / "weights.pth")


def test_large_image(predict, tmp_path):
    Image.new("RGB", (3000, 17)).save(tmp_path / "wide.png")
    assert predict(tmp_path / "wide.png").startswith(str(tmp_path / "wide.png"))
