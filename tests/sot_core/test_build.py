"""The tables of parts: a new part is one class and one entry, and configurations and command lines know it."""

import pytest
import torch
from torch import nn

from sot_core import ClassificationHead, HeadConfig
from sot_core.build import FUSIONS, NORMALIZATIONS, POOLINGS, create_normalization, create_pooling
from sot_core.fusion import SumLogits
from sot_core.math.padding import clear_padding
from sot_core.options import HEAD_OPTIONS
from sot_core.pooling import Pooling


class SumPool(Pooling):
    """The sum of the valid tokens."""

    def __init__(self, embed_dim):
        super().__init__()
        self.out_dim = embed_dim

    def forward(self, tokens, padding_mask=None):
        return clear_padding(tokens, padding_mask).sum(dim=1)


class DifferenceOfLogits(SumLogits):
    """``word_fc(words) - cls_fc(cls)``."""

    def combine(self, logits, training):
        return logits["word_fc"] - logits[self.cls_layer]


def test_a_new_pooling_is_a_class_and_an_entry(monkeypatch):
    monkeypatch.setitem(POOLINGS, "sum", lambda config: SumPool(config.embed_dim))
    head = ClassificationHead(HeadConfig(12, 0, pooling="sum"))
    tokens, mask = torch.randn(2, 5, 12), torch.zeros(2, 5, dtype=torch.bool)
    mask[1, 3:] = True
    expected = torch.stack([tokens[0, 1:].sum(dim=0), tokens[1, 1:3].sum(dim=0)])
    torch.testing.assert_close(head(tokens, mask), expected)


def test_a_new_normalisation_is_a_class_and_an_entry(monkeypatch):
    monkeypatch.setitem(NORMALIZATIONS, "tanh", lambda config, k_dim: nn.Tanh())
    tokens = torch.randn(2, 5, 12)
    config = HeadConfig(12, 0, q_dim=3, normalization="none")
    plain, head = ClassificationHead(config), ClassificationHead(config.replace(normalization="tanh"))
    head.load_state_dict(plain.state_dict())
    assert torch.equal(head(tokens), plain(tokens).tanh())


def test_a_new_fusion_is_a_class_and_an_entry(monkeypatch):
    monkeypatch.setitem(FUSIONS, "difference", DifferenceOfLogits)
    head, tokens = ClassificationHead(HeadConfig(12, 3, q_dim=3, fusion="difference")), torch.randn(2, 5, 12)
    cls, word = head.contributions(tokens)
    assert torch.equal(head(tokens), word - cls)


@pytest.mark.parametrize("name", POOLINGS)
def test_every_pooling_is_built(name):
    assert isinstance(create_pooling(HeadConfig(32, 2, pooling=name)), Pooling)


@pytest.mark.parametrize("name", NORMALIZATIONS)
def test_every_normalisation_is_built(name):
    norm = create_normalization(HeadConfig(8, 2, normalization=name, q_dim=3, k_dim=4))
    assert norm(torch.randn(2, 2, 3, 4)).shape == (2, 2, 3, 4)


def test_command_lines_know_the_names():
    choices = {option.field: option.choices for option in HEAD_OPTIONS}
    assert choices["pooling"] == tuple(POOLINGS)
    assert choices["normalization"] == tuple(NORMALIZATIONS)
    assert choices["fusion"] == tuple(FUSIONS)
