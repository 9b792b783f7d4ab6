"""The projection of tokens where they lie against a linear layer on the valid word tokens alone."""

import itertools

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.autograd import gradcheck, gradgradcheck

from sot_core.math import padding, token_projection
from sot_core.math.token_projection import project_tokens
from tests.sot_core.cases import assert_close

B, T, D, P = 5, 7, 6, 4
MASKS = {"none": 0, "little padding": 2, "much padding": 15}
all_forms = pytest.mark.parametrize("num_prefix, padded", list(itertools.product((0, 1, 2), MASKS)))


@pytest.fixture
def small_parts(monkeypatch):
    """Two samples at a time, so that the last part is a smaller one."""
    monkeypatch.setattr(token_projection, "CPU_PART_BYTES", 2 * T * D * 8 + 1)


def inputs(bias, padded):
    shapes = [(B, T, D), (P, D), (P,)]
    tokens, weight, offset = (torch.randn(shape, dtype=torch.float64, requires_grad=True) for shape in shapes)
    mask = torch.zeros(B * T, dtype=torch.bool)
    mask[torch.randperm(B * T)[: MASKS[padded]]] = True
    return tokens, weight, offset if bias else None, mask.view(B, T) if padded != "none" else None


def plain(tokens, weight, bias, mask, num_prefix):
    words = tokens[:, num_prefix:]
    valid = torch.ones(words.shape[:2], dtype=torch.bool) if mask is None else ~mask[:, num_prefix:]
    projected = torch.zeros(*words.shape[:2], len(weight), dtype=tokens.dtype)
    projected[valid] = torch.nn.functional.linear(words[valid], weight, bias)
    return tokens[:, :num_prefix], projected


def check(tokens, weight, bias, mask, num_prefix, rtol=1e-12):
    leaves = [leaf for leaf in (tokens, weight, bias) if leaf is not None]
    actual = project_tokens(tokens, weight, bias, mask, num_prefix)
    expected = plain(tokens, weight, bias, mask, num_prefix)
    weights = [torch.randn_like(output) for output in expected]
    grads = torch.autograd.grad(actual, leaves, weights, retain_graph=True)
    assert all(map(torch.equal, grads, torch.autograd.grad(actual, leaves, weights)))  # twice over one graph
    for a, e in zip((*actual, *grads), (*expected, *torch.autograd.grad(expected, leaves, weights)), strict=True):
        assert_close(a, e, rtol)


@pytest.mark.usefixtures("small_parts")
@pytest.mark.parametrize("bias", [False, True])
@all_forms
def test_same_as_the_valid_words_alone(num_prefix, padded, bias):
    check(*inputs(bias, padded), num_prefix)


@pytest.mark.usefixtures("small_parts")
@pytest.mark.parametrize("garbage", [float("nan"), float("inf"), 1e300])
@pytest.mark.parametrize("padded", ["little padding", "much padding"])
def test_what_padding_holds_reaches_no_gradient(padded, garbage):
    tokens, weight, bias, mask = inputs(True, padded)
    mask[:, 0] = False
    tokens = tokens.detach().masked_fill(mask.unsqueeze(-1), garbage).requires_grad_()
    check(tokens, weight, bias, mask, 1)


@pytest.mark.usefixtures("small_parts")
@all_forms
def test_derivatives(num_prefix, padded):
    *leaves, mask = inputs(True, padded)
    assert gradcheck(lambda *leaves: project_tokens(*leaves, mask, num_prefix), leaves, fast_mode=True)
    assert gradgradcheck(lambda *leaves: project_tokens(*leaves, mask, num_prefix), leaves, fast_mode=True)


@pytest.mark.parametrize("needed", list(itertools.product((False, True), repeat=3)), ids=str)
def test_only_the_gradients_that_are_asked_for(needed):
    *leaves, mask = inputs(True, "little padding")
    for leaf, need in zip(leaves, needed, strict=True):
        leaf.requires_grad_(need)
    _, projected = project_tokens(*leaves, mask, 1)
    assert projected.requires_grad == any(needed)
    if any(needed):
        projected.square().sum().backward()
    assert [leaf.grad is not None for leaf in leaves] == list(needed)


@pytest.mark.parametrize("padded", MASKS)
def test_tokens_that_are_not_contiguous(padded):
    tokens, weight, bias, mask = inputs(True, padded)
    for view in (tokens.transpose(0, 1).contiguous().transpose(0, 1), torch.cat((tokens, tokens), dim=2)[..., :D]):
        assert not view.is_contiguous()
        check(view.detach().requires_grad_(), weight, bias, mask, 1)


def test_no_samples_and_no_words():
    tokens, weight, bias, _ = inputs(True, "none")
    for empty in (tokens[:0], tokens[:, :1], tokens[:, :0]):
        num_prefix = min(1, empty.shape[1])
        check(empty.detach().requires_grad_(), weight, bias, None, num_prefix)


@pytest.mark.parametrize("padded", MASKS)
def test_a_step_reads_no_value_where_it_must_not(padded):
    """Fake tensors have none, and stand for a GPU's: reading one, or a shape that hangs on one, raises."""
    with FakeTensorMode():
        tokens, weight = torch.empty(B, T, D, requires_grad=True), torch.empty(P, D, requires_grad=True)
        mask = torch.empty(B, T, dtype=torch.bool) if padded != "none" else None
        _, projected = project_tokens(tokens, weight, None, mask, 1)
        projected.sum().backward()
        assert tokens.grad.shape == tokens.shape
        assert weight.grad.shape == weight.shape


@pytest.mark.parametrize("padded", MASKS)
def test_much_padding_is_left_out_and_little_is_computed_on(padded, monkeypatch):
    found = []
    monkeypatch.setattr(padding, "find_valid", lambda mask: found.append(mask) or token_projection.find_valid(mask))
    project_tokens(*inputs(False, padded), 1)
    assert bool(found) == (padded == "much padding")


def test_finite_padding_is_not_cleared(monkeypatch):
    cleared = []
    clear = token_projection.clear_padding
    monkeypatch.setattr(
        token_projection, "clear_padding", lambda tokens, mask: cleared.append(mask is not None) or clear(tokens, mask)
    )
    tokens, weight, bias, mask = inputs(True, "little padding")
    project_tokens(tokens, weight, bias, mask, 1)[1].sum().backward()
    assert cleared == [False]
    spoilt = tokens.detach().masked_fill(mask.unsqueeze(-1), float("nan"))
    project_tokens(spoilt, weight, bias, mask, 1)[1].sum().backward()
    assert cleared == [False, True]
