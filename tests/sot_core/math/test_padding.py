"""Which tokens are valid, how many, and when they are packed."""

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from sot_core.math.padding import clear_padding, count_valid, find_valid, pack_valid

MASK = torch.tensor([[False, False, True], [True, True, True], [False, True, False]])


def test_clear_padding():
    tokens = torch.full((3, 3, 2), float("nan"))
    tokens[~MASK] = 1.0
    cleared = clear_padding(tokens, MASK)
    assert torch.equal(cleared, (~MASK).float().unsqueeze(-1).expand(3, 3, 2))
    assert clear_padding(tokens, None) is tokens


def test_a_row_without_valid_tokens_counts_one():
    assert count_valid(MASK).tolist() == [2, 1, 2]


def test_places_of_the_valid_tokens():
    assert find_valid(MASK).tolist() == [0, 1, 6, 8]


@pytest.mark.parametrize("padding, packs", [(0, False), (19, False), (20, True), (99, True), (100, True)])
def test_much_padding_is_packed(padding, packs):
    mask = (torch.arange(100) < padding).view(10, 10)
    places = pack_valid(mask)
    assert (places is not None) == packs
    assert places is None or torch.equal(places, find_valid(mask))


def test_values_that_cannot_be_read_are_not():
    with FakeTensorMode():
        assert pack_valid(torch.ones(3, 3, dtype=torch.bool)) is None
    assert pack_valid(torch.ones(3, 3, dtype=torch.bool, device="meta")) is None
    graph = torch.export.export(_Pack(), (torch.ones(3, 3, dtype=torch.bool),))
    assert graph.module()(torch.ones(3, 3, dtype=torch.bool)).item() == 1


class _Pack(torch.nn.Module):
    def forward(self, mask):
        return torch.tensor(int(pack_valid(mask) is None))
