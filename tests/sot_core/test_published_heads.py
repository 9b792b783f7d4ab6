"""The published classes that take a dictionary."""

import copy

import torch

from sot_core import Classifier, OnlyVisualTokensClassifier
from tests.sot_core.cases_published import published


def test_the_dictionary_is_not_changed_and_builds_twice():
    values = published()
    before = copy.deepcopy(values)
    before["args"]["normalization"]["regular"] = values["args"]["normalization"]["regular"]
    heads = [Classifier(values, 10), Classifier(values, 10), OnlyVisualTokensClassifier(values, 10)]
    assert values == before
    assert heads[0].config == heads[1].config
    assert all(head.pool.proj.weight is not heads[0].pool.proj.weight for head in heads[1:])
    assert all(module is not values["args"]["normalization"]["regular"] for head in heads for module in head.modules())


def test_classifier():
    head = Classifier(published())
    assert head(torch.randn(2, 5, 256)).shape == (2, 1000)
    assert Classifier(published(), num_classes=7)(torch.randn(2, 5, 256)).shape == (2, 7)


def test_classifier_of_visual_tokens_alone():
    tokens = torch.randn(2, 5, 256)
    for fusion in ("sum_fc", "concat", "aggre_all"):
        head = OnlyVisualTokensClassifier(published(fusion_type=fusion), num_classes=7).eval()
        assert not head.config.has_cls_token
        assert torch.allclose(head(tokens), head.word_fc(head.pool(tokens)))
