"""DropCov's channel dropout and the moments between neighbouring heads."""

import pytest
import torch

from sot_core import DropCovPool, GlobalCovariancePool, MomentPool
from tests.sot_core.cases import assert_close, head


def covariance_of(channels):
    centred = channels - channels.mean(dim=0)
    return centred.T @ centred / len(channels)


def test_nothing_is_dropped_at_inference():
    pool, other, tokens = DropCovPool(12, 5, 0.5), DropCovPool(12, 5, 0.0), torch.randn(3, 9, 12)
    other.load_state_dict(pool.state_dict())
    assert torch.equal(pool.eval()(tokens), other(tokens))
    assert (pool.train()(tokens) != other(tokens)).any()


def test_kept_channels_are_scaled_so_that_what_two_channels_share_stays_on_average():
    pool = DropCovPool(12, 4, 0.5)
    matrix = covariance_of(torch.randn(50, 4) @ torch.randn(4, 4)).expand(4000, -1, -1)
    dropped = pool.transform(matrix)
    keep = 1.0 - pool.drop_rates(matrix)[0]
    is_kept = dropped.diagonal(dim1=1, dim2=2) != 0.0
    assert (is_kept.float().mean(dim=0) - keep).abs().max() < 0.05
    expected = matrix[0] / keep / keep[:, None]
    both = is_kept[:, :, None] & is_kept[:, None]
    assert_close(torch.where(both, dropped, expected), expected.expand_as(dropped))
    assert (dropped[~both] == 0.0).all()
    off_diagonal = ~torch.eye(4, dtype=torch.bool)
    assert ((dropped.mean(dim=0) - matrix[0])[off_diagonal].abs() < 0.2 * matrix[0].abs().max()).all()


def test_a_copy_is_dropped_more_often_and_a_large_channel_less():
    source = torch.randn(200, 4, generator=torch.Generator().manual_seed(0))
    source = torch.linalg.qr(source - source.mean(dim=0)).Q  # channels that say nothing of each other
    channels = torch.cat((source, source[:, :1]), dim=1)
    rates = DropCovPool(12, 5, 0.4).drop_rates(covariance_of(channels))
    assert rates[0] == pytest.approx(rates[4].item(), rel=1e-4)
    assert (rates[1:4] < 0.01).all()
    assert rates[0] > 0.8
    mixed = source @ torch.randn(4, 5, generator=torch.Generator().manual_seed(1))
    rates = DropCovPool(12, 5, 0.4).drop_rates(covariance_of(mixed))
    assert rates.mean() == pytest.approx(0.4, rel=1e-4)
    larger = DropCovPool(12, 5, 0.4).drop_rates(covariance_of(mixed * torch.tensor([3.0, 1.0, 1.0, 1.0, 1.0])))
    assert larger[0] < rates[0]


@pytest.mark.parametrize("dim", [1, 4])
@pytest.mark.parametrize("size", [0.0, 1e-30, 1e30])
def test_rates_of_any_covariance(dim, size):
    rates = DropCovPool(12, dim, 0.5).drop_rates(size * covariance_of(torch.randn(9, dim)))
    assert rates.isfinite().all()
    assert (rates >= 0.0).all()
    assert (rates <= 0.9).all()


def test_training_with_dropout_is_finite_and_leaves_the_generator_to_decide():
    module, tokens = head("dropcov", channel_drop_rate=0.5), torch.randn(3, 9, 12, requires_grad=True)
    mask = torch.zeros(3, 9, dtype=torch.bool)
    mask[1, 1:] = True
    torch.manual_seed(1)
    first = module(tokens, mask)
    torch.manual_seed(1)
    assert torch.equal(module(tokens, mask), first)
    assert not torch.equal(module(tokens, mask), first)
    first.square().sum().backward()
    assert all(value.grad.isfinite().all() for value in (tokens, *module.parameters()))


def test_moments_of_two_heads_are_not_centred():
    pool, tokens = MomentPool(12, 2, 3), torch.randn(1, 1, 12)
    first, second = pool.feature_norm(pool.proj(tokens))[0, 0].split(3)
    outer = torch.outer(first, second).flatten()
    assert_close(pool(tokens)[0], outer / outer.norm(), rtol=1e-4)


def test_moments_have_unit_length_whatever_the_tokens_size():
    pool, tokens = MomentPool(12, 4, 3), torch.randn(5, 9, 12)
    assert pool(tokens).shape == (5, 27)
    assert_close(pool(tokens).norm(dim=1), torch.ones(5), rtol=1e-4)
    assert_close(pool(1e5 * tokens), pool(1e3 * tokens), rtol=1e-3)


def test_what_is_refused():
    with pytest.raises(ValueError, match="num_heads must be at least 2 for moments between neighbouring heads, got 1"):
        MomentPool(12, 1, 3)
    with pytest.raises(ValueError, match=r"drop_rate must be in \[0, 1\), got 1.0"):
        DropCovPool(12, 3, 1.0)
    with pytest.raises(ValueError, match="num_iters must be positive, got 0"):
        GlobalCovariancePool(12, 3, num_iters=0)
