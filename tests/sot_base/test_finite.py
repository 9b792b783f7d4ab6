import pytest
import torch

from sot_base.finite import first_not_finite

GOOD = ("good", torch.ones(3))
LARGE = ("large", torch.full((8,), 3e38))  # finite, but its sum is not


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
@pytest.mark.parametrize("values", [[float("nan")], [float("inf"), 1.0], [float("inf"), float("-inf")]])
def test_first_not_finite_is_named(values, dtype):
    bad = torch.tensor(values, dtype=dtype)
    assert first_not_finite([GOOD, LARGE, ("first", bad), ("second", bad)]) == "first"


def test_finite_tensors_are_none():
    parameter = torch.nn.Parameter(torch.zeros(2))
    half = torch.full((9,), 65504.0, dtype=torch.float16)
    tensors = [GOOD, LARGE, ("half", half), ("none", torch.empty(0)), ("int", torch.tensor([1])), ("w", parameter)]
    assert first_not_finite(tensors) is None
    assert first_not_finite([]) is None
