"""Half precision: covariance and normalisation stay in float32, whatever the module around them is in."""

import copy

import pytest
import torch

from sot_core import cross_covariance, matrix_square_root, singular_value_power_norm
from tests.sot_core.cases import WORDS, all_words, head, run

HALF = [torch.float16, torch.bfloat16]
half_precision = pytest.mark.parametrize("dtype", HALF, ids=str)
UNBOUNDED = ("mgcrp-none", "mgcrp-scale", "mgcrp-learnable_scale", "dropcov")
BOUNDED = [words for words in WORDS if words not in UNBOUNDED]
# Small singular values and small entries are raised most: rounding shows.
SENSITIVE = ("mgcrp-epn", "mgcrp-all_values", "mgcrp-svpn_exact", "mgcrp-two_values")


def rounded(dtype):
    """Whether a tensor's values are all numbers of a half-precision type."""
    return lambda tensor: torch.equal(tensor.to(dtype).to(tensor.dtype), tensor)


@pytest.mark.parametrize("masked", [False, True])
@half_precision
@all_words
def test_autocast(words, dtype, masked):
    module = head(words)
    tokens, mask = torch.randn(4, 9, 12), torch.zeros(4, 9, dtype=torch.bool)
    mask[1, 5:] = True
    mask = mask if masked else None
    expected, expected_grad, _ = run(module, tokens, mask)
    with torch.autocast("cpu", dtype):
        outputs, grad, grads = run(module, tokens, mask)
        pooled = module.pool(tokens)
    assert pooled.dtype == torch.float32
    assert outputs.dtype == dtype
    assert grad.dtype == torch.float32
    assert (outputs - expected).abs().max() < (0.3 if words in SENSITIVE else 0.1) * expected.abs().max()
    assert words in SENSITIVE or (grad - expected_grad).abs().max() < 0.1 * expected_grad.abs().max()
    assert all(value.dtype == torch.float32 and value.isfinite().all() for value in grads.values())


@half_precision
def test_under_autocast_the_covariance_is_that_of_the_rounded_projection(dtype):
    """Inputs are rounded, sums are not: the matrix equals the float64 one of what autocast projects."""
    pool, seen = head(center=None).pool, []
    pool.norm.register_forward_hook(lambda module, args, out: seen.extend((args[0], out)))
    tokens = torch.randn(3, 50, 12)
    with torch.autocast("cpu", dtype):
        pool(tokens)
        projected = torch.nn.functional.linear(tokens, pool.proj.weight)
    assert projected.dtype == dtype
    x, y = (part.view(3, 50, 2, -1).transpose(1, 2) for part in projected.double().tensor_split([10], dim=-1))
    torch.testing.assert_close(seen[0].double(), x.mT @ y / 50, rtol=1e-5, atol=1e-6)
    assert all(value.dtype == torch.float32 and not rounded(dtype)(value) for value in seen)


@half_precision
def test_centring_loses_nothing_to_a_large_mean(dtype):
    pool, tokens = head().pool, torch.randn(3, 50, 12).to(dtype).float()
    pool.proj.weight.data.copy_(torch.eye(18, 12))
    with torch.autocast("cpu", dtype):
        near, far = pool(tokens), pool((tokens + 64.0).to(dtype).float())
    exact = pool((tokens + 64.0).to(dtype).float())
    assert (far - exact).abs().max() < 0.02 * exact.abs().max()
    assert near.isfinite().all()


@pytest.mark.parametrize("words", BOUNDED)
def test_large_activations_in_fp16(words):
    """300 squared is infinite in fp16; the sums are not in fp16."""
    module, tokens = head(words), 300.0 * torch.randn(4, 9, 12)
    with torch.autocast("cpu", torch.float16):
        outputs, grad, grads = run(module, tokens)
    assert outputs.isfinite().all()
    assert grad.isfinite().all()
    assert all(value.isfinite().all() for value in grads.values())
    outputs, grad, grads = run(module.half(), tokens.half())
    assert outputs.isfinite().all()
    assert grad.isfinite().all()
    assert all(value.isfinite().all() for value in grads.values())


def test_small_activations_in_fp16():
    """A product of 1e-8 is 0 in fp16; the sums are not in fp16."""
    module, tokens = head(), 3e-4 * torch.randn(4, 9, 12)
    with torch.autocast("cpu", torch.float16):
        pooled = module.pool(tokens)
    expected = module.pool(tokens)
    assert (pooled - expected).abs().max() < 0.02 * expected.abs().max()


@pytest.mark.parametrize("training", [False, True])
@half_precision
@all_words
def test_modules_in_half_precision(words, dtype, training):
    module = head(words).train(training)
    half = copy.deepcopy(module).to(dtype)
    tokens, mask = torch.randn(4, 9, 12), torch.zeros(4, 9, dtype=torch.bool)
    mask[1, 5:] = True
    expected = run(module, tokens, mask)[0]
    outputs, grad, grads = run(half, tokens.to(dtype), mask)
    assert outputs.dtype == grad.dtype == dtype
    assert (outputs.float() - expected).abs().max() < 0.3 * expected.abs().max()
    assert all(value.dtype == dtype and value.isfinite().all() for value in grads.values())
    assert half.pool(tokens.to(dtype), mask).dtype == dtype


@half_precision
def test_functions_give_back_the_dtype(dtype):
    x, y = torch.randn(2, 1, 9, 5).to(dtype), torch.randn(2, 1, 9, 4).to(dtype)
    matrix = cross_covariance(x, y)
    assert matrix.dtype == torch.float32
    for options in ({}, {"exact": True}, {"num_singular_values": 2, "num_iters": 2}):
        normalized = singular_value_power_norm(matrix.to(dtype), torch.ones(4, dtype=dtype), **options)
        assert normalized.dtype == dtype
        assert normalized.isfinite().all()
    square = (x[:, 0].mT @ x[:, 0]).to(dtype)
    assert matrix_square_root(square).dtype == dtype


def test_float64_stays_float64_under_autocast():
    module, tokens = head().double(), torch.randn(2, 9, 12, dtype=torch.float64)
    expected = module.pool(tokens)
    with torch.autocast("cpu", torch.bfloat16):
        assert torch.equal(module.pool(tokens), expected)


def test_on_the_meta_device():
    module = head().to("meta")
    assert module(torch.randn(2, 9, 12, device="meta")).shape == (2, 3)


@pytest.mark.parametrize("autocast", [False, True])
@pytest.mark.parametrize("training", [False, True])
@half_precision
@all_words
def test_tokens_of_every_size(words, dtype, training, autocast):
    """From the smallest to the largest that the projection holds.

    `scale`, `none` and `dropcov` do not bound their result; the classifier's gradient sums the maxima of `max`.
    """
    largest = (4 if words in BOUNDED and words != "max" else 2) if dtype == torch.float16 else 18
    exponents = range(-8, largest + 1, 2) if dtype == torch.float16 else range(-38, largest + 1, 8)
    mask = torch.zeros(4, 9, dtype=torch.bool)
    mask[1, 5:] = True
    module = head(words).train(training).to(torch.float32 if autocast else dtype)
    for exponent in exponents:
        tokens = (10.0**exponent * torch.randn(4, 9, 12, dtype=torch.float64)).to(torch.float32 if autocast else dtype)
        tokens.requires_grad_()
        module.zero_grad()
        with torch.autocast("cpu", dtype, enabled=autocast):
            outputs = module(tokens, mask)
        (outputs.float() * torch.tensor([-1.0, 0.5, 1.0])).sum().backward()
        for values in (outputs, tokens.grad, *(parameter.grad for parameter in module.parameters())):
            assert values.isfinite().all(), exponent
