"""The hand-written step from tokens to covariance matrices against the same operation by operation."""

import itertools

import pytest
import torch
from torch.autograd import gradcheck, gradgradcheck

from sot_core import token_chunks
from sot_core.token_chunks import CovarianceSpec
from sot_core.token_covariance import project_and_covary, token_covariance
from tests.sot_core.cases import assert_close, head

B, T, D, H, Q, K = 5, 7, 6, 2, 3, 2
SPECS = list(itertools.product(("token", "sample", None), (0, 1), (False, True)))
all_specs = pytest.mark.parametrize("center, num_prefix, recompute", SPECS)


@pytest.fixture
def small_chunks(monkeypatch):
    """Two samples at a time, so that the last chunk is a smaller one."""
    monkeypatch.setattr(token_chunks, "CPU_CHUNK_BYTES", 2 * T * H * (Q + K) * 8 + 1)


def inputs(bias, masked):
    mask = torch.rand(B, T) < 0.3 if masked else None
    if masked:
        mask[1] = True
    shapes = [(B, T, D), (H * (Q + K), D), (H * (Q + K),)]
    tokens, weight, offset = (torch.randn(shape, dtype=torch.float64, requires_grad=True) for shape in shapes)
    return tokens, weight, offset if bias else None, mask


@pytest.mark.usefixtures("small_chunks")
@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("bias", [False, True])
@all_specs
def test_same_as_operation_by_operation(center, num_prefix, recompute, bias, masked):
    *leaves, mask = inputs(bias, masked)
    spec = CovarianceSpec(H, Q, K, center, num_prefix, recompute)
    actual, expected = token_covariance(*leaves, mask, spec), project_and_covary(*leaves, mask, spec)
    weights = [torch.randn_like(output) for output in expected]
    wanted = [leaf for leaf in leaves if leaf is not None]
    grads = torch.autograd.grad(actual, wanted, weights, retain_graph=True)
    assert all(map(torch.equal, grads, torch.autograd.grad(actual, wanted, weights)))  # twice over one graph
    for a, e in zip((*actual, *grads), (*expected, *torch.autograd.grad(expected, wanted, weights)), strict=True):
        assert_close(a, e, rtol=1e-12)


@pytest.mark.usefixtures("small_chunks")
@pytest.mark.parametrize("masked", [False, True])
@all_specs
def test_derivatives(center, num_prefix, recompute, masked):
    tokens, weight, bias, mask = inputs(True, masked)
    spec = CovarianceSpec(H, Q, K, center, num_prefix, recompute)
    assert gradcheck(lambda *leaves: token_covariance(*leaves, mask, spec), (tokens, weight, bias), fast_mode=True)
    assert gradgradcheck(lambda *leaves: token_covariance(*leaves, mask, spec), (tokens, weight, bias), fast_mode=True)


@pytest.mark.parametrize("needed", list(itertools.product((False, True), repeat=3)), ids=str)
def test_only_the_gradients_that_are_asked_for(needed):
    *leaves, mask = inputs(True, True)
    for leaf, need in zip(leaves, needed, strict=True):
        leaf.requires_grad_(need)
    _, matrix = token_covariance(*leaves, mask, CovarianceSpec(H, Q, K, "token", 1, False))
    assert matrix.requires_grad == any(needed)
    if any(needed):
        matrix.square().sum().backward()
    assert [leaf.grad is not None for leaf in leaves] == list(needed)


def test_projection_is_kept_only_where_it_serves(monkeypatch):
    samples = []
    new_buffer = token_chunks.TokenChunks.new_buffer
    monkeypatch.setattr(
        token_chunks.TokenChunks, "new_buffer", lambda self, count: samples.append(count) or new_buffer(self, count)
    )
    monkeypatch.setattr(token_chunks, "CPU_CHUNK_BYTES", 1)  # one sample at a time
    tokens, weight, _, _ = inputs(False, False)
    spec = CovarianceSpec(H, Q, K, "token", 0, False)
    with torch.no_grad():
        token_covariance(tokens, weight, None, None, spec)
    token_covariance(tokens, weight, None, None, spec._replace(recompute=True))
    assert samples == [1, 1]
    token_covariance(tokens, weight, None, None, spec)
    assert samples == [1, 1, B]


def test_tokens_that_are_not_contiguous():
    tokens, weight, _, mask = inputs(False, True)
    spec = CovarianceSpec(H, Q, K, "token", 1, False)
    for view in (tokens.transpose(0, 1).contiguous().transpose(0, 1), torch.cat((tokens, tokens), dim=2)[..., :D]):
        assert not view.is_contiguous()
        view = view.detach().requires_grad_()
        outputs = token_covariance(view, weight, None, mask, spec)
        expected = token_covariance(tokens, weight, None, mask, spec)
        weights = [torch.ones_like(output) for output in outputs]
        assert_close(outputs[1], expected[1], rtol=1e-12)
        grads = [torch.autograd.grad(o, leaf, weights)[0] for o, leaf in ((outputs, view), (expected, tokens))]
        assert_close(*grads, rtol=1e-12)


def test_an_empty_batch():
    pool = head().pool
    tokens = torch.randn(0, 5, 12, requires_grad=True)
    pooled = pool(tokens)
    pooled.sum().backward()
    assert pooled.shape == (0, pool.out_dim)
    assert tokens.grad.shape == tokens.shape
    assert (pool.proj.weight.grad == 0.0).all()


def step_is_used(pool, monkeypatch):
    calls = []
    original = token_covariance
    monkeypatch.setattr("sot_core.pooling.token_covariance", lambda *args: calls.append(1) or original(*args))
    outputs = [pool(torch.randn(2, 5, 12)), *pool.split(torch.randn(2, 5, 12))]
    assert all(output.isfinite().all() for output in outputs)
    return bool(calls)


def test_the_step_is_used_where_nothing_stands_against_it(monkeypatch):
    assert step_is_used(head().pool, monkeypatch)


def test_a_hook_on_the_projection_is_called(monkeypatch):
    pool, seen = head().pool, []
    pool.proj.register_forward_hook(lambda module, args, out: seen.append(out.shape))
    assert not step_is_used(pool, monkeypatch)
    assert seen == [(2, 5, 18), (2, 4, 18)]


def test_a_hook_on_the_pool_is_called():
    module, seen = head(), []
    module.pool.register_forward_hook(lambda module, args, out: seen.append(out) or 0.0 * out)
    logits = module(torch.randn(2, 5, 12))
    assert seen[0].shape == (2, module.pool.out_dim)
    parts = module.contributions(torch.randn(2, 5, 12))
    assert torch.equal(parts.word, module.word_fc.bias.expand(2, -1))
    assert logits.isfinite().all()


def test_a_projection_of_another_kind_is_called(monkeypatch):
    pool = head().pool
    torch.nn.utils.parametrizations.spectral_norm(pool.proj)
    assert not step_is_used(pool, monkeypatch)
    weight = pool.proj.weight
    assert torch.linalg.matrix_norm(weight, 2) < 1.5


def test_a_weight_of_another_kind_is_left_to_the_linear_layer(monkeypatch):
    class Distributed(torch.Tensor):
        pass

    pool = head().pool
    pool.proj.weight = torch.nn.Parameter(pool.proj.weight.detach().as_subclass(Distributed))
    assert not step_is_used(pool, monkeypatch)


def test_both_ways_agree(monkeypatch):
    module, tokens = head().double(), torch.randn(3, 6, 12, dtype=torch.float64)
    direct = module(tokens)
    module.pool.proj.register_forward_hook(lambda module, args, out: None)
    assert_close(module(tokens), direct, rtol=1e-12)
