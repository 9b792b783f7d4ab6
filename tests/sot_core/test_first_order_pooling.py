"""Statistics of each channel: values of every size, equal words, and the limits of the generalised mean."""

import pytest
import torch

from sot_core import GeneralizedMeanPool, GlobalAveragePool, MaxPool, MeanDeviationPool
from tests.sot_core.cases import assert_close

SIZES = [1e-30, 1e-12, 1.0, 1e12, 1e30]


def gradient(pool, tokens):
    tokens = tokens.clone().requires_grad_()
    pool(tokens).sum().backward()
    return tokens.grad


@pytest.mark.parametrize("size", SIZES)
def test_a_deviation_neither_overflows_nor_vanishes(size):
    pool, tokens = MeanDeviationPool(4), torch.randn(3, 7, 4)
    tokens -= tokens.mean(dim=1, keepdim=True)
    assert_close(pool(size * tokens)[:, 4:] / size, tokens.double().std(dim=1, unbiased=False).float())
    assert gradient(pool, size * tokens).isfinite().all()


def test_words_that_do_not_differ_have_no_deviation():
    pool = MeanDeviationPool(4)
    tokens = torch.randn(3, 1, 4)
    for repeated in (tokens, tokens.expand(-1, 8, -1)):  # a mean of eight equal numbers is exact
        assert (pool(repeated)[:, 4:] == 0.0).all()
        assert_close(gradient(pool, repeated), torch.full_like(repeated, 1.0 / repeated.shape[1]))


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("power", [0.1, 1.0, 3.0, 40.0])
def test_no_power_overflows(power, size):
    pool, tokens = GeneralizedMeanPool(4, power, eps=1e-35), torch.rand(3, 7, 4).add(0.1)
    expected = tokens.double().pow(power).mean(dim=1).pow(1.0 / power).float()
    assert_close(pool(size * tokens) / size, expected, rtol=1e-4)
    assert gradient(pool, size * tokens).isfinite().all()
    assert pool.power.grad.isfinite().all()


def test_the_generalised_mean_lies_between_mean_and_maximum():
    tokens = torch.rand(3, 7, 4).add(0.1)
    pools = [GeneralizedMeanPool(4, power) for power in (1.0, 3.0, 1000.0)]
    mean, middle, largest = (pool(tokens) for pool in pools)
    assert_close(mean, GlobalAveragePool(4)(tokens))
    assert_close(largest, MaxPool(4)(tokens), rtol=0.01)
    assert (mean < middle).all()
    assert (middle < largest).all()


def test_a_learned_power_below_its_least_value_counts_as_that():
    tokens = torch.rand(3, 7, 4)
    for power in (0.0, -2.0):
        assert_close(GeneralizedMeanPool(4, power)(tokens), GeneralizedMeanPool(4, 0.1)(tokens))
        assert gradient(GeneralizedMeanPool(4, power), tokens).isfinite().all()


def test_negative_values_count_as_epsilon():
    tokens = torch.tensor([[[-5.0], [2.0]]])
    assert GeneralizedMeanPool(1)(tokens).item() == pytest.approx(4.0 ** (1 / 3))
    assert GeneralizedMeanPool(1)(-tokens.abs()).item() == pytest.approx(1e-6)


def test_negative_maxima_are_kept_beside_padding():
    tokens, mask = -1.0 - torch.rand(2, 4, 3), torch.tensor([[False, False, True, True], [False, True, True, True]])
    pooled = MaxPool(3)(tokens, mask)
    assert torch.equal(pooled, torch.stack((tokens[0, :2].amax(dim=0), tokens[1, 0])))
