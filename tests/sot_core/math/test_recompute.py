"""A function computed a few samples at a time, twice, against the function of the whole batch."""

import itertools

import pytest
import torch
from torch.autograd import gradcheck, gradgradcheck

from sot_core.math.recompute import recompute_in_parts
from tests.sot_core.cases import assert_close, head, run


def function(tokens, mask, weight, bias=None):
    values = torch.nn.functional.linear(tokens, weight, bias)
    if mask is not None:
        values = values.masked_fill(mask.unsqueeze(-1), 0.0)
    return tokens[:, 0], values.mT @ values


def inputs(masked, bias):
    shapes = [(5, 7, 4), (3, 4), (3,)][: 2 + bias]
    leaves = [torch.randn(shape, dtype=torch.float64, requires_grad=True) for shape in shapes]
    return leaves, torch.rand(5, 7) < 0.3 if masked else None


@pytest.mark.parametrize("size", [1, 2, 5, 9])
@pytest.mark.parametrize("masked, bias", list(itertools.product((False, True), repeat=2)))
def test_same_as_the_whole(masked, bias, size):
    (tokens, *parameters), mask = inputs(masked, bias)
    actual = recompute_in_parts(function, size, tokens, mask, *parameters)
    expected = function(tokens, mask, *parameters)
    weights = [torch.randn_like(output) for output in expected]
    grads = [torch.autograd.grad(outputs, (tokens, *parameters), weights) for outputs in (actual, expected)]
    for a, e in zip((*actual, *grads[0]), (*expected, *grads[1]), strict=True):
        assert_close(a, e, rtol=1e-12)


@pytest.mark.parametrize("masked", [False, True])
def test_derivatives(masked):
    leaves, mask = inputs(masked, True)

    def parts(tokens, *parameters):
        return recompute_in_parts(function, 2, tokens, mask, *parameters)

    assert gradcheck(parts, leaves, fast_mode=True)
    assert gradgradcheck(parts, leaves, fast_mode=True)


@pytest.mark.parametrize("needed", list(itertools.product((False, True), repeat=3)), ids=str)
def test_only_the_gradients_that_are_asked_for(needed):
    leaves, mask = inputs(True, True)
    for leaf, need in zip(leaves, needed, strict=True):
        leaf.requires_grad_(need)
    _, product = recompute_in_parts(function, 2, leaves[0], mask, *leaves[1:])
    assert product.requires_grad == any(needed)
    if any(needed):
        product.square().sum().backward()
    assert [leaf.grad is not None for leaf in leaves] == list(needed)


def test_nothing_but_the_input_is_kept():
    (tokens, weight), _ = inputs(False, False)
    kept = []
    with torch.autograd.graph.saved_tensors_hooks(lambda tensor: kept.append(tensor) or tensor, lambda tensor: tensor):
        recompute_in_parts(function, 2, tokens, None, weight)
    assert {tensor.data_ptr() for tensor in kept} == {tokens.data_ptr(), weight.data_ptr()}


def test_a_batch_without_samples():
    (tokens, weight), _ = inputs(False, False)
    cls, product = recompute_in_parts(function, 2, tokens[:0], None, weight)
    assert (cls.shape, product.shape) == ((0, 4), (0, 3, 3))
    product.sum().backward()
    assert (weight.grad == 0.0).all()


@pytest.mark.parametrize("masked", [False, True])
def test_a_head_that_recomputes(masked, monkeypatch):
    monkeypatch.setattr("sot_core.pooling.PART_BYTES", 1)  # one sample at a time
    module = head("mgcrp-bias", recompute=True).double()
    tokens, mask = torch.randn(4, 9, 12, dtype=torch.float64), torch.zeros(4, 9, dtype=torch.bool)
    mask[1, 5:] = True
    actual = run(module, tokens, mask if masked else None)
    module.pool.recompute = False
    expected = run(module, tokens, mask if masked else None)
    for a, e in zip(actual[:2], expected[:2], strict=True):
        assert_close(a, e, rtol=1e-12)
    for name, grad in actual[2].items():
        assert_close(grad, expected[2][name], rtol=1e-12)
