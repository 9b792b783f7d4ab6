"""Poolings as modules: hooks and replaced projections are called, and the ways to the same result agree."""

import pytest
import torch

from tests.sot_core.cases import SECOND_ORDER, assert_close, head

linear = pytest.mark.parametrize("words", ["mgcrp-svpn", "mgcrp-bias", "gcp"])


def projects_where_tokens_lie(pool, monkeypatch):
    calls = []
    pool_projected = pool._project_and_pool
    monkeypatch.setattr(
        pool, "_project_and_pool", lambda *args, **options: calls.append(1) or pool_projected(*args, **options)
    )
    outputs = [pool(torch.randn(2, 5, 12)), *pool.split(torch.randn(2, 5, 12))]
    assert all(output.isfinite().all() for output in outputs)
    return bool(calls)


@linear
def test_tokens_are_projected_where_they_lie(words, monkeypatch):
    assert projects_where_tokens_lie(head(words).pool, monkeypatch)


@linear
def test_a_hook_on_the_projection_is_called(words, monkeypatch):
    pool, seen = head(words).pool, []
    pool.proj.register_forward_hook(lambda module, args, out: seen.append(out.shape[:2]))
    assert not projects_where_tokens_lie(pool, monkeypatch)
    assert seen == [(2, 5), (2, 4)]


@linear
def test_a_hook_on_the_pool_is_called(words):
    module, seen = head(words), []
    module.pool.register_forward_hook(lambda module, args, out: seen.append(out) or 0.0 * out)
    logits = module(torch.randn(2, 5, 12))
    assert seen[0].shape == (2, module.pool.out_dim)
    parts = module.contributions(torch.randn(2, 5, 12))
    assert torch.equal(parts.word, module.word_fc.bias.expand(2, -1))
    assert logits.isfinite().all()


@linear
def test_a_projection_of_another_kind_is_called(words, monkeypatch):
    pool = head(words).pool
    torch.nn.utils.parametrizations.spectral_norm(pool.proj)
    assert not projects_where_tokens_lie(pool, monkeypatch)
    assert torch.linalg.matrix_norm(pool.proj.weight, 2) < 1.5


@linear
def test_a_weight_of_another_kind_is_left_to_the_linear_layer(words, monkeypatch):
    class Distributed(torch.Tensor):
        pass

    pool = head(words).pool
    pool.proj.weight = torch.nn.Parameter(pool.proj.weight.detach().as_subclass(Distributed))
    assert not projects_where_tokens_lie(pool, monkeypatch)


@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("words", SECOND_ORDER)
def test_all_ways_agree(words, masked):
    pool, tokens = head(words).double().eval().pool, torch.randn(3, 6, 12, dtype=torch.float64)
    mask = torch.zeros(3, 6, dtype=torch.bool)
    mask[1, 3:] = True
    mask, words_mask = (mask, mask[:, 1:]) if masked else (None, None)
    cls, pooled = pool.split(tokens, mask)
    assert torch.equal(cls, tokens[:, 0])
    assert_close(pool(tokens[:, 1:], words_mask), pooled, rtol=1e-12)
    pool.proj.register_forward_hook(lambda module, args, out: None)
    assert_close(pool(tokens[:, 1:], words_mask), pooled, rtol=1e-12)
    assert_close(pool.split(tokens, mask)[1], pooled, rtol=1e-12)


def test_an_empty_batch():
    pool = head().pool
    tokens = torch.randn(0, 5, 12, requires_grad=True)
    pooled = pool(tokens)
    pooled.sum().backward()
    assert pooled.shape == (0, pool.out_dim)
    assert tokens.grad.shape == tokens.shape
    assert (pool.proj.weight.grad == 0.0).all()
