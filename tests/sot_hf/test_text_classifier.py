"""`TextClassifier` with scikit-learn's own tools."""

import json
import pickle
import subprocess
import sys

import numpy as np
import pytest
from sklearn.base import clone, is_classifier
from sklearn.model_selection import GridSearchCV, cross_val_score
from sklearn.pipeline import Pipeline
from sklearn.preprocessing import FunctionTransformer, MultiLabelBinarizer

from sot_base.errors import UsageError
from sot_hf import TextClassifier
from sot_hf.token_states import TextEncoder
from tests.sot_hf.models import WORDS

TINY = {"mgcrp_heads": 2, "mgcrp_q": 4}


@pytest.fixture(scope="module")
def data():
    """Sentences, and whether there is a cat in them."""
    rng = np.random.default_rng(1)
    texts = [" ".join(rng.choice(WORDS, rng.integers(3, 7))) for _ in range(60)]
    return texts, ["cat" if "cat" in text.split() else "none" for text in texts]


@pytest.fixture
def classifier(bert_folder):
    settings = {"head": "gap-words", "layers": 0, "epochs": 20, "lr": 0.05, "batch_size": 16}
    return TextClassifier(str(bert_folder), random_state=0, **settings)


def test_it_learns_and_is_repeatable(classifier, data):
    texts, labels = data
    classifier.fit(texts, labels)
    assert classifier.classes_.tolist() == ["cat", "none"]
    assert classifier.score(texts, labels) > 0.8
    probabilities = classifier.predict_proba(texts)
    np.testing.assert_allclose(probabilities.sum(1), 1)
    assert (classifier.classes_[probabilities.argmax(1)] == classifier.predict(texts)).all()
    again = clone(classifier).fit(np.array(texts), np.array(labels, dtype=object))
    np.testing.assert_array_equal(again.predict_proba(texts), probabilities)
    other = clone(classifier).set_params(random_state=1).fit(texts, labels)
    assert (other.predict_proba(texts) != probabilities).any()
    assert classifier.predict([]).shape == (0,)


def test_scikit_learns_tools(classifier, data, bert_folder, monkeypatch):
    texts, labels = data
    assert is_classifier(classifier)
    assert clone(classifier).get_params() == classifier.get_params()
    encoded, encode = [], TextEncoder.encode
    monkeypatch.setattr(TextEncoder, "encode", lambda self, rows: encoded.append(len(rows)) or encode(self, rows))
    classifier.set_params(max_length=39)  # an encoder that is not in memory yet
    assert cross_val_score(classifier, texts, labels, cv=3).mean() > 0.6
    search = GridSearchCV(classifier, {"lr": [1e-6, 0.05], "head": ["gap-words"]}, cv=3).fit(texts, labels)
    assert search.best_params_["lr"] == 0.05
    assert sum(encoded) == len(set(texts))  # each text once
    lower = FunctionTransformer(lambda rows: [row.lower() for row in rows])
    pipeline = Pipeline([("lower", lower), ("classify", classifier)]).fit([text.upper() for text in texts], labels)
    assert pipeline.score([text.upper() for text in texts], labels) > 0.8


def test_a_fitted_one_is_pickled_without_its_rows(classifier, data):
    texts, labels = data
    for layers in (0, [1, -1]):
        classifier.set_params(layers=layers, epochs=1).fit(texts, labels)
        expected = classifier.predict_proba(texts)  # transformers has put its hooks on the model
        again = pickle.loads(pickle.dumps(classifier))
        assert again.encoder_.cache.size == 0 < classifier.encoder_.cache.size
        np.testing.assert_array_equal(again.predict_proba(texts), expected)
    np.testing.assert_array_equal(classifier.predict_proba(["the cat", *texts])[1:], expected)  # and goes on


LOAD = """
import sys, numpy as np
from sot_hf import TextClassifier
loaded = TextClassifier.from_pretrained(sys.argv[1])
np.save(sys.argv[2], loaded.predict_proba(sys.argv[3:]))
"""


@pytest.mark.parametrize("pair", ["words_cls", "x_y"])
def test_pairs_of_layers_are_saved_too(classifier, data, tmp_path, pair):
    texts, labels = data
    settings = {"head": "mgcrp", "head_options": TINY, "layers": [1, -1], "layer_pair": pair}
    classifier.set_params(**settings).fit(texts, labels)
    assert (classifier.head_.pair, classifier.head_.layer_mix) == (pair, None)
    expected = classifier.predict_proba(texts[:7])
    classifier.save_pretrained(tmp_path / "model")
    loaded = TextClassifier.from_pretrained(tmp_path / "model")
    assert loaded.layer_pair == pair
    np.testing.assert_allclose(loaded.predict_proba(texts[:7]), expected, atol=1e-5)


@pytest.mark.e2e
def test_saved_and_loaded_in_a_new_process(classifier, data, tmp_path):
    texts, labels = data
    classifier.set_params(head="mgcrp", head_options=TINY, layers=[1, 2], class_weight={"cat": 2}).fit(texts, labels)
    expected = classifier.predict_proba(texts[:7])
    classifier.save_pretrained(tmp_path / "model")
    assert not [path for path in (tmp_path / "model").iterdir() if path.suffix in (".bin", ".pt", ".pkl")]
    command = [sys.executable, "-c", LOAD, tmp_path / "model", tmp_path / "found.npy", *texts[:7]]
    subprocess.run(command, check=True, timeout=120, stderr=subprocess.DEVNULL)
    np.testing.assert_allclose(np.load(tmp_path / "found.npy"), expected, atol=1e-5)
    loaded = TextClassifier.from_pretrained(tmp_path / "model")
    assert loaded.predict(texts[:7]).tolist() == classifier.predict(texts[:7]).tolist()
    assert loaded.class_weight == {"cat": 2}
    assert loaded.fit(texts, labels).score(texts, labels) > 0.7


def test_numbers_as_labels_pairs_and_weights(classifier, data, tmp_path):
    texts, labels = data
    numbers = [3 if label == "cat" else 8 for label in labels]
    pairs = [(text, "the dog") for text in texts]
    classifier.fit(pairs, numbers)
    assert set(classifier.predict(pairs)) <= {3, 8}
    shares = {}
    for weight in (None, "balanced", {3: 50.0}):
        found = clone(classifier).set_params(class_weight=weight, epochs=3).fit(texts, numbers)
        shares[str(weight)] = (found.predict(texts) == 3).mean()
    assert shares["{3: 50.0}"] >= shares["balanced"] >= shares["None"]
    assert shares["{3: 50.0}"] > shares["None"]
    found.save_pretrained(tmp_path / "model")
    loaded = TextClassifier.from_pretrained(tmp_path / "model")
    assert loaded.classes_.tolist() == [3, 8]
    assert loaded.class_weight == {3: 50.0}


def test_several_labels_a_row(classifier, data, tmp_path):
    texts, _ = data
    sets = MultiLabelBinarizer(classes=["cat", "dog"]).fit_transform(
        [set(text.split()) & {"cat", "dog"} for text in texts]
    )
    classifier.set_params(class_weight="balanced", early_stopping=True, epochs=40).fit(texts, sets)
    assert classifier.predict(texts).shape == sets.shape
    assert classifier.score(texts, sets) > 0.6
    assert ((classifier.predict_proba(texts) > 0.5) == classifier.predict(texts)).all()
    classifier.save_pretrained(tmp_path / "model")
    loaded = TextClassifier.from_pretrained(tmp_path / "model")
    np.testing.assert_allclose(loaded.predict_proba(texts[:5]), classifier.predict_proba(texts[:5]), atol=1e-5)


def test_early_stopping(classifier, data):
    classifier.set_params(early_stopping=True, validation_fraction=0.2, n_iter_no_change=2, epochs=200, lr=1e-7)
    assert classifier.fit(*data).n_iter_ < 200


def test_saving_replaces_nothing_but_what_was_saved(classifier, data, bert_folder, tmp_path):
    texts, labels = data
    classifier.set_params(epochs=1, encoder=bert_folder).fit(texts, labels)
    notes = tmp_path / "mine" / "notes.txt"
    notes.parent.mkdir()
    notes.write_text("keep")
    with pytest.raises(UsageError, match=r"a folder of other files: .*mine; give a new one to save in"):
        classifier.save_pretrained(notes.parent)
    with pytest.raises(NotADirectoryError, match=r"a file where a folder is to be written: .*notes.txt"):
        classifier.save_pretrained(notes)
    assert notes.read_text() == "keep"
    assert [path.name for path in tmp_path.iterdir()] == ["mine"]  # nothing unfinished
    (tmp_path / "new").mkdir()
    for _ in range(2):
        classifier.save_pretrained(tmp_path / "new")
    assert TextClassifier.from_pretrained(tmp_path / "new").encoder == str(bert_folder)


@pytest.mark.parametrize(
    "change, message",
    [
        ({"classes": ["cat", ["none"]]}, "not the parameters of TextClassifier"),
        ({"classes": ["cat", None]}, "not the parameters of TextClassifier"),
        ({"classes": []}, "not the parameters of TextClassifier"),
        ({"classes": ["none", "cat"]}, "not a model of the classes none, cat: .*model; save it again"),
        ({"params": {"max_length": "x"}}, "max_length must be a positive whole number, got 'x': .*model; correct it"),
    ],
)
def test_a_damaged_description_is_named(classifier, data, tmp_path, change, message):
    classifier.set_params(epochs=1).fit(*data).save_pretrained(tmp_path / "model")
    path = tmp_path / "model" / "estimator.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **change}))
    with pytest.raises(UsageError, match=message):
        TextClassifier.from_pretrained(tmp_path / "model")


def test_mistakes(classifier, data, tmp_path):
    texts, labels = data
    for change, message in (
        ({"head": "svm"}, "no such head 'svm': TextClassifier; give one of cls, "),
        ({"head_options": {"mgcrp_q2": 3}}, "no such option 'mgcrp_q2' of a head: TextClassifier"),
        ({"lr": -1}, "lr must be positive, got -1: TextClassifier"),
        ({"lr": "1e-3"}, "lr must be positive, got '1e-3': TextClassifier"),
        ({"epochs": 1.5}, "epochs must be a positive whole number, got 1.5: TextClassifier"),
        ({"batch_size": 8.0}, "batch_size must be a positive whole number, got 8.0: TextClassifier"),
        ({"class_weight": {"cat": -2}}, "a weight must be positive, got -2: class_weight 'cat'"),
        ({"class_weight": {"cat": "2"}}, "a weight must be positive, got '2': class_weight 'cat'"),
        ({"class_weight": [1, 2]}, "a list: class_weight; give 'balanced', or a dictionary"),
        ({"class_weight": {"dog": 2}}, "no such class: class_weight 'dog'; the classes are"),
        ({"weight_decay": -1}, "weight_decay must be 0 or more, got -1: TextClassifier"),
        ({"lr": None}, "lr must be positive, got None: TextClassifier"),
        ({"batch_size": None}, "batch_size must be a positive whole number, got None: TextClassifier"),
        ({"random_state": -1}, "not a seed .*: random_state -1; give a number from 0"),
        ({"random_state": "x"}, "not a seed .*: random_state 'x'; give a number from 0"),
        ({"device": "meta"}, "no such device: meta"),
        ({"layers": 7}, "no such layer: --layers 7"),
        ({"layers": []}, r"not a layer or a list of layers: layers \[\]; give whole numbers"),
        ({"max_length": 2}, r"--max-length 2, but the model takes 3 to \d+ tokens; give one of these"),
        ({"layer_pair": "y_x"}, "no such pair: .*layer_pair='y_x'.; give one of words_cls, x_y"),
        ({"layer_pair": "x_y"}, r"layer_pair needs two layers: .*layers=0.; give two"),
        ({"layers": [1, -1], "layer_pair": "x_y"}, "not for layer_pair 'x_y': head 'gap-words'; give head='mgcrp'"),
        ({"layers": 1.5}, "not a layer or a list of layers: layers 1.5; give whole numbers"),
        ({"head": "mgcrp", "head_options": {"mgcrp_q": 0}}, "q_dim must be a positive integer, got 0"),
    ):
        with pytest.raises(UsageError, match=message):
            clone(classifier).set_params(**change).fit(texts, labels)
    with pytest.raises(UsageError, match="60 rows and 3 labels: fit; give a label for each row"):
        classifier.fit(texts, labels[:3])
    with pytest.raises(UsageError, match="all rows have the label 'cat'"):
        classifier.fit(texts[:2], ["cat", "cat"])
    for rows, given, message in (
        ([], [], "labels of 1 dimensions, empty: fit; give a list of labels, or 0 and 1 for each class"),
        (texts, np.linspace(0, 1, 60), "labels of 1 dimensions, continuous"),
        (texts, np.arange(120).reshape(60, 2), "labels of 2 dimensions, multiclass-multioutput"),
        (texts, [None, *labels[1:]], "labels of 1 dimensions, unknown"),
        (texts, [float("nan"), *range(59)], r"no labels of classes \(Input contains NaN"),
        (texts, [["cat"], ["cat", "dog"]] * 30, r"no labels of classes \("),
        (texts, None, "labels of 0 dimensions"),
        (texts[0], labels, "one str where rows are expected: X; give a list of them"),
    ):
        with pytest.raises(UsageError, match=message):
            classifier.fit(rows, given)
    column = clone(classifier).set_params(epochs=1).fit(texts, np.array(labels)[:, None])
    assert column.classes_.tolist() == ["cat", "none"]
    with pytest.raises(UsageError, match="one str where rows are expected"):
        column.predict("the cat")  # else a label for each letter
    with pytest.raises(UsageError, match="a sample is not a text"):
        classifier.fit([*texts[:-1], 3], labels)
    (tmp_path / "estimator.json").write_text('{"params": {"svm": 1}, "classes": ["a"]}')
    with pytest.raises(UsageError, match=r"not the parameters of TextClassifier: .*estimator.json"):
        TextClassifier.from_pretrained(tmp_path)
    with pytest.raises(UsageError, match=r"cannot read estimator.json"):
        TextClassifier.from_pretrained(tmp_path / "nowhere")
