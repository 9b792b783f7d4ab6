"""The published classes that take a dictionary."""

import copy

import pytest
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


class TestTheCallOfThePublishedCode:
    """``Classifier(num_classes, input_dim, representationConfig)``."""

    @pytest.mark.parametrize("head_class, tokens", [(Classifier, 6), (OnlyVisualTokensClassifier, 5)])
    def test_it_is_the_same_head(self, head_class, tokens):
        config = published()
        heads = [
            head_class(config, 7),
            head_class(7, 256, config),
            head_class(7, input_dim=256, representationConfig=config),
            head_class(num_classes=7, input_dim=256, representationConfig=config),
        ]
        assert [head.config for head in heads] == [heads[0].config] * 4
        assert heads[1](torch.randn(2, tokens, 256)).shape == (2, 7)

    def test_the_width_may_be_said_once(self):
        config = published()
        width = config["args"].pop("dim")
        assert Classifier(7, width, config).config.embed_dim == width

    def test_mistakes(self):
        with pytest.raises(ValueError, match="input_dim 128 is not the dictionary's dim, 256; give one of them"):
            Classifier(7, 128, published())
        with pytest.raises(ValueError, match="a head needs one dictionary"):
            Classifier(7, 256)
        with pytest.raises(ValueError, match="a head needs one dictionary"):
            Classifier(published(), 7, published())
