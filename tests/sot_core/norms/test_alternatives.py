"""Normalisations other than svPN on matrices of rounding noise and of extreme entries."""

import torch
from hypothesis import given
from hypothesis import strategies as st

from sot_core import ElementwisePowerNorm
from sot_core.norms.alternatives import RowLayerNorm
from tests.sot_core.cases import assert_close, examples
from tests.sot_core.matrices import REPEATED, both_dtypes, rotated, unit_weights


@both_dtypes
@examples
@given(values=st.lists(st.sampled_from(REPEATED), min_size=3, max_size=6), exponent=st.integers(-12, 6))
def test_epn_of_rounding_noise(dtype, values, exponent):
    """``z = sqrt(|x| + e)`` has a slope below ``1 / (2 sqrt(e))``, a column of z is 0 or longer than ``sqrt(e)``."""
    matrix = (10.0**exponent * rotated(values, dtype)).requires_grad_()
    norm = ElementwisePowerNorm()
    normalized = norm(matrix)
    (normalized * unit_weights(matrix)).sum().backward()
    assert normalized.norm() <= 1.01 * len(values) ** 0.5
    assert matrix.grad.norm() <= 1.01 / (2.0 * norm.eps)


@examples
@given(exponent=st.integers(-20, 19))
def test_layer_norm_is_torchs(exponent):
    """Up to entries whose squares float32 cannot hold; float64 can."""
    ours, theirs = RowLayerNorm(4), torch.nn.LayerNorm(4, dtype=torch.float64)
    for parameter, other in zip(ours.parameters(), theirs.parameters(), strict=True):
        parameter.data.uniform_(0.5, 1.5)
        other.data.copy_(parameter)
    matrix = 10.0**exponent * torch.randn(2, 3, 4)
    inputs = [matrix.clone().requires_grad_(), matrix.double().requires_grad_()]
    outputs = [norm(values) for norm, values in zip((ours, theirs), inputs, strict=True)]
    assert_close(outputs[0].double(), outputs[1])
    grads = [
        torch.autograd.grad((output * torch.linspace(-1.0, 1.0, 4)).sum(), values)[0]
        for output, values in zip(outputs, inputs, strict=True)
    ]
    assert_close(grads[0].double() * 10.0**exponent, grads[1] * 10.0**exponent)
