"""Attentive poolings: what they reduce to, scores of every size, and what they refuse."""

import pytest
import torch

from sot_core import AttentionPool, EfficientProbingPool
from tests.sot_core.cases import assert_close

attentive = pytest.mark.parametrize(
    "create", [lambda: AttentionPool(12, 3, mlp=True), lambda: EfficientProbingPool(12, 3)]
)


def test_queries_of_zero_take_the_mean():
    tokens = torch.randn(2, 7, 12)
    efficient, attention = EfficientProbingPool(12, 3), AttentionPool(12, 4)
    torch.nn.init.zeros_(efficient.queries)
    torch.nn.init.zeros_(attention.query_proj.weight)
    torch.nn.init.zeros_(attention.query_proj.bias)
    mean = tokens.mean(dim=1)
    assert_close(efficient(tokens), mean @ efficient.values.flatten(0, 1).T)
    assert_close(attention(tokens), attention.out_proj(attention.value_proj(mean)))


def test_a_long_query_takes_the_token_it_points_at():
    tokens = torch.eye(12).unsqueeze(0)
    pool = EfficientProbingPool(12, 3)
    pool.queries.data = 1e4 * torch.eye(12)[[5, 0, 11]]
    expected = torch.cat([values[:, i] for values, i in zip(pool.values, (5, 0, 11), strict=True)])
    assert_close(pool(tokens)[0], expected)


@attentive
@pytest.mark.parametrize("size", [0.0, 1e-30, 1e4, 1e12])
def test_scores_of_every_size(create, size):
    pool, tokens = create(), (size * torch.randn(3, 7, 12)).requires_grad_()
    mask = torch.zeros(3, 7, dtype=torch.bool)
    mask[1] = True
    pooled = pool(tokens, mask)
    pooled.sum().backward()
    assert pooled.isfinite().all()
    assert (pooled[1] == 0.0).all()
    assert all(value.grad.isfinite().all() for value in (tokens, *pool.parameters()))


@attentive
def test_trained_biases_do_not_show_where_there_are_no_tokens(create):
    pool = create()
    for parameter in pool.parameters():
        torch.nn.init.normal_(parameter)
    assert (pool(torch.randn(2, 0, 12)) == 0.0).all()
    assert (pool(torch.randn(2, 4, 12), torch.ones(2, 4, dtype=torch.bool)) == 0.0).all()


def test_what_does_not_divide_the_width():
    with pytest.raises(ValueError, match="num_heads must divide embed_dim, got 5 and 12"):
        AttentionPool(12, 5)
    with pytest.raises(ValueError, match="num_queries must divide embed_dim, got 5 and 12"):
        EfficientProbingPool(12, 5)
    with pytest.raises(ValueError, match="num_queries must be positive, got 0"):
        EfficientProbingPool(12, 0)
