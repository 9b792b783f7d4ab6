"""Numbers that arrive while the host goes on."""

import pytest
import torch

from sot_base import later_values
from sot_base.later_values import LaterValues


def test_on_the_cpu_they_are_used_at_once():
    seen = []
    LaterValues().read(torch.tensor([1.0, 2.5]), seen.append)
    assert seen == [[1.0, 2.5]]


@pytest.fixture
def copies(monkeypatch):
    """The copies that are made; none has arrived before its ``arrived`` is set."""
    made = []

    class Copy:
        def __init__(self, values):
            self.number, self.arrived = len(made), False
            made.append(self)

        def has_arrived(self):
            return self.arrived

        def wait(self):
            return [float(self.number)]

    monkeypatch.setattr(later_values, "_HostCopy", Copy)
    return made


def test_they_are_used_in_order_when_they_have_arrived(copies):
    values, seen = LaterValues(), []
    for _ in range(3):
        values.read(torch.ones(1, device="meta"), seen.extend)
    assert seen == []
    copies[0].arrived = copies[2].arrived = True
    values.read(torch.ones(1, device="meta"), seen.extend)
    assert seen == [0.0]
    values.settle()
    assert seen == [0.0, 1.0, 2.0, 3.0]


def test_only_so_many_are_on_their_way(copies):
    values, seen = LaterValues(pending=2), []
    for _ in range(5):
        values.read(torch.ones(1, device="meta"), seen.extend)
    assert seen == [0.0, 1.0, 2.0]


def test_an_error_leaves_the_rest_to_be_used(copies):
    values = LaterValues()

    def fail(_):
        raise ValueError("seen")

    values.read(torch.ones(1, device="meta"), fail)
    values.read(torch.ones(1, device="meta"), fail)
    for _ in range(2):
        with pytest.raises(ValueError, match="seen"):
            values.settle()
    values.settle()
