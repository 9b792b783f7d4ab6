import pytest
import torch

from sot_core.layer_mix import LayerMix


def test_it_begins_as_the_mean_and_follows_the_formula():
    layers = [torch.randn(2, 5, 4) for _ in range(3)]
    mix = LayerMix(3)
    torch.testing.assert_close(mix(layers), torch.stack(layers).mean(0))
    with torch.no_grad():
        mix.scores.copy_(torch.tensor([0.3, -1.0, 2.0]))
        mix.gamma.fill_(0.7)
    shares = torch.tensor([0.3, -1.0, 2.0]).exp()
    expected = 0.7 * sum(share * layer for share, layer in zip(shares, layers, strict=True)) / shares.sum()
    torch.testing.assert_close(mix(layers), expected)
    mix.reset_parameters()
    torch.testing.assert_close(mix(layers), torch.stack(layers).mean(0))


def test_each_parameter_gets_a_gradient():
    mix = LayerMix(2)
    mix([torch.randn(1, 3, 2), torch.randn(1, 3, 2)]).square().sum().backward()
    assert all(parameter.grad.abs().max() > 0 for parameter in mix.parameters())


def test_mistakes():
    with pytest.raises(ValueError, match="num_layers must be positive, got 0"):
        LayerMix(0)
    with pytest.raises(ValueError, match="expected 2 layers, got 1"):
        LayerMix(2)([torch.randn(1, 3, 2)])
