"""`ImageClassifier` with scikit-learn's own tools."""

import subprocess
import sys

import numpy as np
import pytest
import timm
import torch
from sklearn.base import clone, is_classifier
from sklearn.model_selection import GridSearchCV, cross_val_score
from sklearn.pipeline import Pipeline
from sklearn.preprocessing import FunctionTransformer

from sot_base.errors import UsageError
from tests.vision.conftest import CLASSES, make_image, make_split
from vision import ImageClassifier
from vision.probing.image_encoder import ImageEncoder


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    folder = make_split(tmp_path_factory.mktemp("images"), count=8)
    paths = sorted(folder.glob("*/*.png"))
    return [str(path) for path in paths], [path.parent.name for path in paths]


@pytest.fixture
def classifier(tmp_path_factory):
    torch.manual_seed(0)
    path = tmp_path_factory.getbasetemp() / "classifier_test_vit.pth"
    torch.save(timm.create_model("test_vit", img_size=32).state_dict(), path)
    settings = {"img_size": 32, "head": "gap", "epochs": 10, "lr": 0.02, "batch_size": 8, "random_state": 0}
    return ImageClassifier("test_vit", checkpoint=str(path), **settings)


def test_it_learns_from_paths_images_and_arrays(classifier, data):
    paths, labels = data
    classifier.fit(paths, labels)
    assert classifier.score(paths, labels) > 0.9
    assert classifier.classes_.tolist() == list(CLASSES)
    fresh = [make_image(index, 100) for index in range(3)]
    assert classifier.predict(fresh).tolist() == list(CLASSES)
    expected = classifier.predict_proba(fresh)
    np.testing.assert_allclose(classifier.predict_proba([np.asarray(image) for image in fresh]), expected, atol=1e-5)
    again = clone(classifier).fit(paths, labels)
    np.testing.assert_array_equal(again.predict_proba(paths), classifier.predict_proba(paths))


def test_scikit_learns_tools(classifier, data, monkeypatch):
    paths, labels = data
    assert is_classifier(classifier)
    assert clone(classifier).get_params() == classifier.get_params()
    encoded, encode = [], ImageEncoder.encode
    monkeypatch.setattr(
        ImageEncoder, "encode", lambda self, images: encoded.append(len(images)) or encode(self, images)
    )
    assert cross_val_score(classifier, paths, labels, cv=3).mean() > 0.8
    search = GridSearchCV(classifier, {"lr": [1e-9, 0.02], "head": ["cls", "gap-words"]}, cv=2).fit(paths, labels)
    assert search.best_params_["lr"] == 0.02
    assert sum(encoded) <= 1 + len(paths)  # each image once, and one that tells the number of tokens
    strip = FunctionTransformer(lambda rows: [row.strip() for row in rows])
    pipeline = Pipeline([("strip", strip), ("classify", classifier)]).fit([f" {path}" for path in paths], labels)
    assert pipeline.score([f"{path} " for path in paths], labels) > 0.9


LOAD = """
import sys, numpy as np
from vision import ImageClassifier
np.save(sys.argv[2], ImageClassifier.from_pretrained(sys.argv[1]).predict_proba(sys.argv[3:]))
"""


@pytest.mark.e2e
def test_saved_and_loaded_in_a_new_process(classifier, data, tmp_path):
    paths, labels = data
    classifier.set_params(head="mgcrp", head_options={"mgcrp_heads": 2, "mgcrp_q": 4}).fit(paths, labels)
    classifier.save_pretrained(tmp_path / "model")
    command = [sys.executable, "-c", LOAD, tmp_path / "model", tmp_path / "found.npy", *paths[::5]]
    subprocess.run(command, check=True, timeout=120)
    np.testing.assert_allclose(np.load(tmp_path / "found.npy"), classifier.predict_proba(paths[::5]), atol=1e-5)
    loaded = ImageClassifier.from_pretrained(tmp_path / "model")
    assert loaded.predict(paths).tolist() == classifier.predict(paths).tolist()


def test_several_classes_weights_and_early_stopping(classifier, data):
    paths, labels = data
    sets = np.array([[label != "owl", label == "dog"] for label in labels], dtype=int)
    classifier.set_params(class_weight="balanced", early_stopping=True, validation_fraction=0.25, epochs=20)
    classifier.fit(paths, sets)
    assert classifier.predict(paths).shape == (24, 2)
    assert classifier.score(paths, sets) > 0.7


def test_mistakes(classifier, data, tmp_path):
    paths, labels = data
    with pytest.raises(UsageError, match=r"no such image: .*nowhere.jpg; check the path"):
        classifier.fit(["nowhere.jpg", *paths[1:]], labels)
    with pytest.raises(UsageError, match="not an image, but int: images; give paths"):
        classifier.fit([3, *paths[1:]], labels)
    photo = np.zeros((8, 9, 3), np.uint8)
    for rows, shape in (
        ([photo.transpose(2, 0, 1)], r"\(3, 8, 9\) of uint8"),
        ([photo[:0]], r"\(0, 9, 3\) of uint8"),
        ([photo.astype(float)], r"\(8, 9, 3\) of float64"),
        (photo, r"\(9, 3\) of uint8"),  # one image, whose rows are no images
    ):
        with pytest.raises(UsageError, match=rf"an array {shape}: images; give \(height, width, 3\) of uint8"):
            classifier.fit(list(rows) * 8, ["a", "b"] * (4 * len(rows)))
    with pytest.raises(UsageError, match="no weights of test_vit"):
        clone(classifier).set_params(checkpoint=None).fit(paths, labels)
    (tmp_path / "broken.png").write_bytes(b"none")
    with pytest.raises(UsageError, match=r"cannot read an image: .*broken.png"):
        classifier.fit([str(tmp_path / "broken.png"), *paths[1:]], labels)
    classifier.set_params(layers=1).fit(paths, labels)
    with pytest.raises(UsageError, match="an image model reads the last layer, this head"):
        classifier.save_pretrained(tmp_path / "model")
    assert not (tmp_path / "model").exists()
