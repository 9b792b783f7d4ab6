"""The cross-covariance against its definition, and its two forms against each other."""

import pytest
import torch

from sot_core import cross_covariance
from sot_core.math import covariance
from sot_core.math.covariance import center_features
from tests.sot_core.cases import assert_close


def centred(values, center):
    if center == "token":
        return values - values.mean(dim=0)
    return values - values.mean() if center == "sample" else values


@pytest.mark.parametrize("center", ["token", "sample", None])
@pytest.mark.parametrize("widths", [(5, 4), (3, 6), (4, 4)], ids=str)
def test_the_definition(widths, center):
    x, y = (torch.randn(3, 2, 9, width, dtype=torch.float64) for width in widths)
    mask = torch.zeros(3, 9, dtype=torch.bool)
    mask[1, 6:], mask[2, [0, 4]] = True, True
    expected = torch.zeros(3, 2, *widths, dtype=torch.float64)
    for b in range(3):
        for h in range(2):
            valid_x, valid_y = (centred(values[b, h][~mask[b]], center) for values in (x, y))
            expected[b, h] = valid_x.T @ valid_y / (~mask[b]).sum()
    assert_close(cross_covariance(x, y, mask, center), expected, rtol=1e-12)
    x, y = (values.masked_fill(mask[:, None, :, None], float("nan")) for values in (x, y))
    assert_close(cross_covariance(x, y, mask, center), expected, rtol=1e-12)
    assert_close(cross_covariance(x[:1], y[:1], None, center), expected[:1], rtol=1e-12)


@pytest.mark.parametrize("center", ["token", "sample", None])
def test_one_product_for_each_head_or_one_for_all(center, monkeypatch):
    x, y = (torch.randn(3, 2, 9, width, dtype=torch.float64, requires_grad=True) for width in (5, 4))
    mask = torch.zeros(3, 9, dtype=torch.bool)
    mask[1, 6:] = True
    found = []
    for can_read in (True, False):
        monkeypatch.setattr(covariance, "can_read_values", lambda tensor, can_read=can_read: can_read)
        matrix = cross_covariance(x, y, mask, center)
        found.append((matrix, *torch.autograd.grad(matrix.square().sum(), (x, y))))
    for actual, expected in zip(*found, strict=True):
        assert_close(actual, expected, rtol=1e-12)


@pytest.mark.parametrize("center", ["token", "sample", None])
def test_centred_features_are_zero_at_padding(center):
    mask = torch.zeros(3, 9, dtype=torch.bool)
    mask[1, 6:], mask[2] = True, True
    features = torch.randn(3, 9, 4, dtype=torch.float64).masked_fill(mask.unsqueeze(-1), 0.0)
    actual = center_features(features, mask, center)
    assert (actual[mask] == 0.0).all()
    for b in range(2):
        assert_close(actual[b][~mask[b]], centred(features[b][~mask[b]], center), rtol=1e-12)
