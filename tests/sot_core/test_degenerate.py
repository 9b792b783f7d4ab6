"""Input without information or of extreme size: outputs and gradients stay finite, bounded, and 0 where they should."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from sot_core import singular_value_power_norm
from tests.sot_core.cases import SECOND_ORDER, WORDS, all_heads, all_words, assert_close, examples, head, run

TOKEN = torch.linspace(-1.0, 1.3, 12)
INPUTS = {
    "zeros": torch.zeros(3, 7, 12),
    "one token": torch.randn(3, 2, 12, generator=torch.Generator().manual_seed(0)),
    "no word token": torch.randn(3, 1, 12, generator=torch.Generator().manual_seed(0)),
    "one token, repeated": TOKEN.expand(3, 9, 12),
    "two tokens, repeated": torch.stack((TOKEN, TOKEN.flip(0))).repeat(3, 4, 1),
    "fewer tokens than dimensions": torch.randn(3, 4, 12, generator=torch.Generator().manual_seed(0)),
    "tiny": 1e-12 * torch.randn(3, 9, 12, generator=torch.Generator().manual_seed(0)),
}
COVARIANCES = [
    words
    for words in SECOND_ORDER
    if WORDS[words].get("center", "token") == "token" and "batch_norm" not in words and words != "moment"
]
MATRICES = {
    "zeros": torch.zeros(2, 5, 4),
    "identity": torch.eye(5, 4).expand(2, 5, 4),
    "rank one": (torch.linspace(1.0, 2.0, 5)[:, None] * torch.linspace(-1.0, 1.0, 4)).expand(2, 5, 4),
    "repeated values": torch.diag(torch.tensor([2.0, 2.0, 1.0, 1.0, 0.0])),
    "nearly equal values": torch.diag(torch.tensor([1.0, 1.0 + 1e-7, 1.0 - 1e-7])),
    "ones": torch.ones(4, 4),
    "3 tokens in 8 dimensions": torch.randn(8, 2, generator=torch.Generator().manual_seed(0))
    @ torch.randn(2, 8, generator=torch.Generator().manual_seed(1)),
}
NORMS = {
    "one value": {},
    "published": {"residual_eps": 1e-5},
    "two values": {"num_singular_values": 2, "num_iters": 2},
    "two values, published": {"num_singular_values": 2, "num_iters": 2, "residual_eps": 1e-5},
    "all values": {"num_singular_values": None, "num_iters": 2},
    "exact": {"exact": True},
}


@pytest.mark.parametrize("training", [False, True])
@pytest.mark.parametrize("name", INPUTS)
@all_words
def test_outputs_and_gradients_are_finite_and_bounded(words, name, training):
    module = head(words).train(training)
    outputs, grad, grads = run(module, INPUTS[name])
    for values in (outputs, grad, *grads.values()):
        assert values.isfinite().all()
        assert values.numel() == 0 or values.abs().max() < 1e3


@pytest.mark.parametrize("training", [False, True])
@all_heads
def test_a_sample_without_valid_tokens(words, fusion, training):
    module = head(words, fusion).train(training)
    mask = torch.zeros(3, 7, dtype=torch.bool)
    mask[1] = True
    mask[1, 0] = fusion == "aggre_all"
    outputs, grad, grads = run(module, torch.randn(3, 7, 12), mask)
    for values in (outputs, grad, *grads.values()):
        assert values.isfinite().all()
    assert (grad[1, 1:] == 0.0).all() or fusion == "cls"


@all_words
def test_the_words_part_of_a_sample_without_valid_tokens_is_zero(words):
    for training in (False, True):
        pool = head(words).train(training).pool
        mask = torch.tensor([[False] * 6, [True] * 6])
        pooled = pool(torch.randn(2, 6, 12), mask)
        assert (pooled[1] == 0.0).all()
        assert (pooled[0] != 0.0).any()
        assert (pool(torch.randn(2, 0, 12)) == 0.0).all()


@pytest.mark.parametrize("words", COVARIANCES)
def test_the_covariance_of_words_that_do_not_differ_is_zero(words):
    pool = head(words).pool
    for name in ("zeros", "one token", "no word token"):
        pooled = pool(INPUTS[name][:, 1:])
        has_bias = WORDS[words].get("pooling") in ("gcp", "dropcov")  # which is rounded
        assert (pooled == 0.0).all() or (has_bias and pooled.abs().max() < 1e-6)
    for name in ("one token, repeated", "tiny"):
        bound = 1.0 if "epn" in words else 1e-6  # ePN, as published, brings rounding noise to unit length
        assert pool(INPUTS[name][:, 1:]).abs().max() <= bound


@pytest.mark.parametrize("options", NORMS.values(), ids=NORMS)
@pytest.mark.parametrize("name", MATRICES)
def test_matrices_without_a_gap(name, options):
    matrix = MATRICES[name].clone().requires_grad_()
    start = torch.linspace(0.5, 1.5, matrix.shape[-1], requires_grad=True)
    normalized = singular_value_power_norm(matrix, start, **options)
    weights = torch.linspace(-1.0, 1.0, normalized.numel()).view(normalized.shape)
    (normalized * weights).sum().backward()
    assert normalized.isfinite().all()
    assert normalized.abs().max() < 10.0
    assert matrix.grad.isfinite().all()
    assert matrix.grad.abs().max() < 1e6
    if start.grad is not None:
        assert start.grad.isfinite().all()
    if name == "zeros":
        assert (normalized == 0.0).all()


@pytest.mark.parametrize("options", NORMS.values(), ids=NORMS)
@examples
@given(exponent=st.floats(-45.0, 25.0), alpha=st.floats(0.05, 1.0), seed=st.integers(0, 9))
def test_entries_from_0_to_1e25(options, exponent, alpha, seed):
    generator = torch.Generator().manual_seed(seed)
    matrix = torch.rand(2, 5, 4, generator=generator).mul(2.0).sub(1.0).mul(10.0**exponent).requires_grad_()
    start = torch.randn(4, generator=generator).requires_grad_()
    normalized = singular_value_power_norm(matrix, start, alpha=alpha, **options)
    normalized.sum().backward()
    assert normalized.isfinite().all()
    assert matrix.grad.isfinite().all()
    assert start.grad is None or start.grad.isfinite().all()
    if exponent > -5.0:  # s^alpha lies between the largest entry's and 20 times that
        assert normalized.abs().max() <= 20.0 * max(1.0, matrix.detach().abs().max().item() ** alpha)


@pytest.mark.parametrize("alpha", [0.3, 0.5])
@pytest.mark.parametrize("options", [{}, {"num_iters": 3}, {"exact": True}], ids=str)
def test_below_the_floor_the_power_is_linear(options, alpha):
    matrix = (1e-12 * torch.randn(2, 5, 4, dtype=torch.float64)).requires_grad_()
    weights, start = torch.randn(2, 5, 4, dtype=torch.float64), torch.randn(4, dtype=torch.float64)
    normalized = singular_value_power_norm(matrix, start, alpha, **options)
    normalized.backward(weights)
    factor = 1e-10 ** (alpha - 1.0)
    assert_close(normalized / factor, matrix, rtol=1e-9)
    assert_close(matrix.grad / factor, weights, rtol=1e-9)


def test_a_matrix_with_nan_does_not_spoil_the_batch():
    matrix = torch.randn(3, 5, 4)
    matrix[1, 2, 3] = float("nan")
    for options in NORMS.values():
        normalized = singular_value_power_norm(matrix, torch.ones(4), **options)
        assert normalized[1].isnan().all()
        assert normalized[[0, 2]].isfinite().all()
