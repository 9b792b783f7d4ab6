"""What each fusion gives the classifiers to read, and what it makes of what they say."""

import pytest
import torch

from sot_core.build import FUSIONS

CLS, WORDS = torch.tensor([[1.0, 2.0]]), torch.tensor([[3.0, 4.0, 5.0]])
BOTH = torch.tensor([[1.0, 2.0, 3.0, 4.0, 5.0]])
READS = {
    "sum_fc": {"cls_fc": CLS, "word_fc": WORDS},
    "sum_loss": {"cls_fc": CLS, "word_fc": WORDS},
    "concat": {"word_fc": BOTH},
    "aggre_all": {"word_fc": WORDS},
    "words": {"word_fc": WORDS},
    "cls": {"cls_fc": CLS},
}
all_fusions = pytest.mark.parametrize("name", FUSIONS)


@all_fusions
def test_what_the_classifiers_read(name):
    inputs = FUSIONS[name]().inputs(CLS, WORDS)
    assert inputs.keys() == READS[name].keys()
    assert all(torch.equal(vector, READS[name][layer]) for layer, vector in inputs.items())


@all_fusions
def test_after_a_pooler_the_class_tokens_classifier_is_out_proj(name):
    renamed = {"cls_fc": "out_proj", "word_fc": "out_proj" if name == "concat" else "word_fc"}
    assert list(FUSIONS[name]("out_proj").inputs(CLS, WORDS)) == [renamed[layer] for layer in READS[name]]


@all_fusions
def test_the_features(name):
    expected = {"concat": BOTH, "cls": CLS}.get(name, WORDS)
    assert torch.equal(FUSIONS[name]().features(CLS, WORDS), expected)
    assert FUSIONS[name].features_use_cls == (name in ("concat", "cls"))


@pytest.mark.parametrize("training", [False, True])
@all_fusions
def test_the_logits(name, training):
    said = {layer: torch.full((1, 2), 10.0 + i) for i, layer in enumerate(READS[name])}
    logits = FUSIONS[name]().combine(said, training)
    if name == "sum_loss" and training:
        assert logits == (said["cls_fc"], said["word_fc"])
    else:
        assert torch.equal(logits, sum(said.values()))


@all_fusions
def test_the_contributions_of_linear_classifiers_sum_to_the_logits(name):
    fusion = FUSIONS[name]()
    layers = {layer: torch.nn.Linear(vector.shape[1], 4) for layer, vector in READS[name].items()}
    cls, words = fusion.contributions(layers, CLS, WORDS)
    said = {layer: layers[layer](vector) for layer, vector in READS[name].items()}
    torch.testing.assert_close(cls + words, fusion.combine(said, training=False))
    assert (cls == 0.0).all() == (not fusion.uses_cls)
    assert (words == 0.0).all() == (not fusion.uses_words)
