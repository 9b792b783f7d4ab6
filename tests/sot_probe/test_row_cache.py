"""States of rows in memory: encoded once, and not more of them than there is room for."""

import numpy as np
import torch

from sot_probe.row_cache import RowCache

LENGTHS = {"a": 3, "b": 1, "c": 2, "d": 3}


def make_states(cache, keys, encoded):
    lengths = np.array([LENGTHS[key] for key in keys])

    def encode(rows):
        encoded.extend(keys[row] for row in rows.tolist())
        width = lengths[rows].max()
        return [torch.stack([torch.full((width, 2), float(ord(keys[row]))) for row in rows.tolist()])]

    return cache.states(keys, lengths, encode, max_tokens=4)


def values(states):
    return [chr(int(states.layers[0][start, 0])) for start in states.starts.tolist()]


def test_each_row_is_encoded_once():
    cache, encoded = RowCache(), []
    assert values(make_states(cache, ["a", "b", "a"], encoded)) == ["a", "b", "a"]
    states = make_states(cache, ["c", "a", "b"], encoded)
    assert values(states) == ["c", "a", "b"]
    assert states.lengths.tolist() == [2, 3, 1]
    assert sorted(encoded) == ["a", "b", "c"]


def test_the_least_recently_used_rows_make_room():
    row = 3 * 2 * 4  # bytes of the longest
    cache, encoded = RowCache(max_bytes=2 * row), []
    make_states(cache, ["a", "d"], encoded)
    make_states(cache, ["a"], encoded)
    make_states(cache, ["c"], encoded)
    assert cache.size <= 2 * row
    encoded.clear()
    assert values(make_states(cache, ["a", "c", "d"], encoded)) == ["a", "c", "d"]
    assert encoded == ["d"]
