"""Attribution methods: shapes, padding, what they must satisfy by their definition."""

import sys

import pytest
import torch
from torch import nn

from sot_base.errors import UsageError
from sot_visual.attention import record_attention
from sot_visual.attribution import METHODS, attribute
from tests.sot_visual.models import TinyEncoder, ids

TARGET = torch.tensor([0, 2])


@pytest.fixture
def encoder():
    return TinyEncoder().eval()


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("part", ["cls", "word", "both"])
def test_scores_are_finite_differ_and_are_zero_at_padding(encoder, method, part):
    inputs = (ids(7, 4),)
    scores = attribute(encoder.view(), inputs, TARGET, method, part)
    assert scores.shape == (2, 7)
    assert scores.isfinite().all()
    assert scores[0].unique().numel() > 1
    if method != "random":
        assert not scores[1, 4:].any()
        alone = attribute(encoder.view(), (inputs[0][1:, :4],), TARGET[1:], method, part)
        torch.testing.assert_close(alone[0], scores[1, :4], rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("method", [name for name in METHODS if name != "random"])
def test_scores_depend_on_the_class(encoder, method):
    inputs = (ids(7, 7),)
    first, second = (attribute(encoder.view(), inputs, torch.full((2,), k), method) for k in (0, 1))
    assert not torch.allclose(first, second)


def test_contributions_add_up_to_the_logits_without_biases(encoder):
    view, inputs = encoder.view(), (ids(7, 4),)
    cls, word = encoder.head.contributions(*view.tokens(*inputs))
    bias = encoder.head.word_fc.bias
    expected = {"cls": cls, "word": word - bias, "both": cls + word - bias}
    for part, logits in expected.items():
        scores = attribute(view, inputs, TARGET, "contributions", part)
        torch.testing.assert_close(scores.sum(dim=1), logits.gather(1, TARGET[:, None])[:, 0].detach())


def test_integrated_gradients_sum_to_the_difference_from_the_baseline(encoder, monkeypatch):
    monkeypatch.setattr("sot_visual.attribution.STEPS", 300)
    view, inputs = encoder.view(), (ids(7, 7),)
    scores = attribute(view, inputs, TARGET, "integrated_gradients")
    with torch.no_grad():
        nothing = encoder.embed.weight[0].expand(2, 7, -1)
        handle = encoder.embed.register_forward_hook(lambda *args: nothing)
        without = view.logits(*inputs)
        handle.remove()
        change = view.logits(*inputs) - without
    torch.testing.assert_close(scores.sum(dim=1), change.gather(1, TARGET[:, None])[:, 0], rtol=0.05, atol=0.02)


def test_relevance_of_one_block_is_the_formula_of_the_paper():
    encoder = TinyEncoder(fusion="cls").eval()
    encoder.blocks = encoder.blocks[:1]
    inputs = (ids(5),)
    with record_attention() as maps:
        logit = encoder.view().logits(*inputs)[0, 1]
    (slope,) = torch.autograd.grad(logit, maps)
    row = (slope * maps[0]).clamp_min(0).mean(dim=1)[0, 0]  # what the class token attends to
    scores = attribute(encoder.view(), inputs, torch.tensor([1]), "relevance")[0]
    torch.testing.assert_close(scores, (row + torch.eye(5)[0]).detach())


def test_attention_in_steps_gives_the_same_logits(encoder):
    view, inputs = encoder.view(), (ids(7, 4),)
    with record_attention() as maps:
        logits = view.logits(*inputs)
    torch.testing.assert_close(logits, view.logits(*inputs))
    assert [tuple(weights.shape) for weights in maps] == [(2, 2, 7, 7)] * 2
    query = torch.randn(2, 4, 5, 3)
    key, value = torch.randn(2, 2, 2, 5, 3)
    options = {"is_causal": True, "enable_gqa": True, "scale": 0.3}
    expected = nn.functional.scaled_dot_product_attention(query, key, value, **options)
    with record_attention():
        torch.testing.assert_close(nn.functional.scaled_dot_product_attention(query, key, value, **options), expected)


def test_grad_cam_without_a_block_and_with_a_zero_gradient_warns_and_is_finite(encoder, caplog):
    nn.init.zeros_(encoder.head.word_fc.weight)
    scores = attribute(encoder.view(), (ids(7, 4),), TARGET, "gradient_x_input", "word")
    assert not scores.any()
    assert "all scores are 0" in caplog.text


def test_methods_that_a_model_lacks_say_so(encoder):
    view = TinyEncoder(normalization="epn").eval().view()
    with pytest.raises(UsageError, match=r"ElementwisePowerNorm.*choose another --method"):
        attribute(view, (ids(4),), TARGET[:1], "contributions")
    encoder.blocks = nn.ModuleList([nn.Identity()])
    encoder.blocks[0].forward = lambda x, mask: x
    with pytest.raises(UsageError, match="no self-attention"):
        attribute(encoder.view(), (ids(4),), TARGET[:1], "relevance")
    cls = attribute(encoder.view(), (ids(4),), TARGET[:1], "contributions", "cls")
    assert cls[0].nonzero().tolist() == [[0]]  # nowhere to spread it


@pytest.mark.parametrize("fusion, parts", [("words", 1), ("aggre_all", 1), ("cls", 1), ("concat", 3), ("sum_loss", 3)])
def test_parts_of_each_fusion(fusion, parts):
    view = TinyEncoder(fusion=fusion).eval().view()
    assert len(view.parts) == parts
    assert attribute(view, (ids(6, 3),), TARGET, "contributions").shape == (2, 6)


def test_without_captum_its_methods_say_so(encoder, monkeypatch):
    monkeypatch.setitem(sys.modules, "captum.attr", None)
    with pytest.raises(UsageError, match="captum is not installed"):
        attribute(encoder.view(), (ids(4),), TARGET[:1], "integrated_gradients")
    assert attribute(encoder.view(), (ids(4),), TARGET[:1], "relevance").any()
