"""The cache of token states by itself, with an encoder that is a table."""

import json
import shutil
import time
from collections import namedtuple
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import torch

from sot_base.errors import UsageError
from sot_fairseq.probing.token_cache import Encoded, EncodedSplit, open_or_create

LENGTHS = {"train": np.array([3, 1, 4, 2]), "valid": np.array([2, 5])}
DESCRIPTION = {"checkpoint": "abc", "special_tokens": [0, None]}


class Encoder:
    """Random states; counts how often it runs."""

    def __init__(self, scale=1.0):
        generator = torch.Generator().manual_seed(1)
        self.runs = 0
        self.states = {
            split: [scale * torch.randn(length, 8, generator=generator) for length in lengths]
            for split, lengths in LENGTHS.items()
        }

    def batches(self, split):
        for rows in np.array_split(np.argsort(LENGTHS[split], kind="stable"), 2):
            yield rows, torch.nn.utils.rnn.pad_sequence([self.states[split][row] for row in rows], batch_first=True)

    def __call__(self):
        self.runs += 1
        splits = {split: EncodedSplit(lengths, self.batches(split)) for split, lengths in LENGTHS.items()}
        return Encoded(8, splits, {"dense.weight": torch.arange(6.0).view(2, 3)})


def open_cache(folder, encode, description=DESCRIPTION, dtype="float32"):
    return open_or_create(folder, "SST-2/tiny", description, dtype, encode)


def test_rows_come_back_as_they_were_encoded(tmp_path):
    encoder = Encoder()
    cache, folder, was_there = open_cache(tmp_path / "new", encoder)
    assert not was_there
    assert folder.parent == tmp_path / "new"
    assert folder.name.startswith("SST-2-tiny-")
    for split, expected in encoder.states.items():
        rows = torch.arange(len(expected)).flip(0)
        states, padding_mask = cache.splits[split].gather(rows)
        assert torch.equal(cache.splits[split].lengths, torch.from_numpy(LENGTHS[split]))
        assert torch.equal((~padding_mask).sum(1), cache.splits[split].lengths[rows])
        assert torch.equal(states[~padding_mask], torch.cat([expected[row] for row in rows]))
        assert torch.equal(cache.splits[split].gather_first(rows), states[:, :1])
    assert torch.equal(cache.start["dense.weight"], torch.arange(6.0).view(2, 3))


def test_half_precision_is_rounded_once(tmp_path):
    encoder = Encoder()
    cache = open_cache(tmp_path, encoder, dtype="float16")[0]
    assert cache.splits["train"].states.dtype == torch.float16
    states = cache.splits["train"].gather(torch.tensor([2]))[0]
    assert states.dtype == torch.float32
    assert torch.equal(states[0], encoder.states["train"][2].half().float())


def test_the_second_time_nothing_is_encoded(tmp_path):
    encoder = Encoder()
    first = open_cache(tmp_path, encoder)
    second = open_cache(tmp_path, encoder)
    assert encoder.runs == 1
    assert second[1:] == (first[1], True)
    assert torch.equal(first[0].splits["valid"].states, second[0].splits["valid"].states)


def test_writing_to_the_states_leaves_the_file_alone(tmp_path):
    encoder = Encoder()
    open_cache(tmp_path, encoder)[0].splits["train"].states.zero_()
    assert torch.equal(open_cache(tmp_path, encoder)[0].splits["train"].states, torch.cat(encoder.states["train"]))
    assert encoder.runs == 1


@pytest.mark.parametrize("change", [{"checkpoint": "abd"}, {"special_tokens": [0, 2]}, {"more": 1}])
def test_another_description_is_another_entry(tmp_path, change):
    encoder = Encoder()
    first = open_cache(tmp_path, encoder)[1]
    assert open_cache(tmp_path, encoder, {**DESCRIPTION, **change})[1] != first
    assert open_cache(tmp_path, encoder, dtype="float16")[1] != first
    assert encoder.runs == 3
    assert open_cache(tmp_path, encoder)[2]


def cut(path):
    path.write_bytes(path.read_bytes()[:-5])


def flip(path):
    content = bytearray(path.read_bytes())
    content[-9] ^= 1
    path.write_bytes(content)


def describe_otherwise(path):
    path.write_text(json.dumps({**json.loads(path.read_text()), "description": {}}))


@pytest.mark.parametrize("name", ["train.states.npy", "valid.offsets.npy", "start.npz"])
@pytest.mark.parametrize("damage", [cut, flip, lambda path: path.unlink(), lambda path: path.write_bytes(b"")])
def test_a_damaged_entry_is_made_again(tmp_path, caplog, name, damage):
    encoder = Encoder()
    folder = open_cache(tmp_path, encoder)[1]
    damage(folder / name)
    cache, again, was_there = open_cache(tmp_path, encoder)
    assert (again, was_there, encoder.runs) == (folder, False, 2)
    assert torch.equal(cache.splits["train"].states, torch.cat(encoder.states["train"]))
    assert "token states are damaged" in caplog.text
    assert name in caplog.text
    assert open_cache(tmp_path, encoder)[2]


@pytest.mark.parametrize(
    "damage", [cut, describe_otherwise, lambda path: path.write_text("[]"), lambda path: path.unlink()]
)
def test_a_damaged_header_is_written_again(tmp_path, caplog, damage):
    encoder = Encoder()
    folder = open_cache(tmp_path, encoder)[1]
    damage(folder / "header.json")
    assert not open_cache(tmp_path, encoder)[2]
    assert "damaged" in caplog.text
    assert open_cache(tmp_path, encoder)[2]
    assert encoder.runs == 2


def test_an_encoder_that_fails_leaves_nothing(tmp_path):
    encoder = Encoder()

    def fail():
        encoded = encoder()

        def batches():
            yield next(iter(encoded.splits["train"].batches))
            raise KeyboardInterrupt

        return encoded._replace(splits={"train": EncodedSplit(LENGTHS["train"], batches())})

    with pytest.raises(KeyboardInterrupt):
        open_cache(tmp_path, fail)
    assert [path.suffix for path in tmp_path.iterdir()] == [".lock"]
    assert not open_cache(tmp_path, encoder)[2]


def test_what_a_killed_process_left_is_removed(tmp_path):
    encoder = Encoder()
    name = open_cache(tmp_path, encoder)[1].name
    left = tmp_path / f".{name}.x7d_abc"
    left.mkdir()
    (left / "train.states.npy").write_bytes(b"half")
    assert open_cache(tmp_path, encoder)[2]
    assert sorted(path.name for path in tmp_path.iterdir()) == [f".{name}.lock", name]


def test_rows_that_are_not_encoded_are_noticed(tmp_path):
    def incomplete():
        encoded = Encoder()()
        return encoded._replace(
            splits={"train": EncodedSplit(LENGTHS["train"], [next(iter(Encoder().batches("train")))])}
        )

    with pytest.raises(ValueError, match="3 of 10 tokens of split 'train' were encoded"):
        open_cache(tmp_path, incomplete)


def test_what_half_precision_cannot_hold_is_refused(tmp_path):
    encoder = Encoder(scale=1e6)
    with pytest.raises(UsageError, match=r"states of split 'train' do not fit into float16.*--cache-dtype float32"):
        open_cache(tmp_path, encoder, dtype="float16")
    assert not open_cache(tmp_path, encoder)[2]


def test_a_full_disk_is_told_before_writing(tmp_path, monkeypatch):
    usage = namedtuple("usage", "total used free")
    monkeypatch.setattr(shutil, "disk_usage", lambda path: usage(1, 1, 100))
    with pytest.raises(UsageError, match=r"0 MiB of token states, 0 MiB free: .*; give --cache-dir"):
        open_cache(tmp_path, Encoder())


def test_of_two_that_want_the_same_entry_one_encodes(tmp_path):
    encoder = Encoder()

    def slow():
        time.sleep(0.3)
        return encoder()

    with ThreadPoolExecutor(2) as pool:
        caches = list(pool.map(lambda _: open_cache(tmp_path, slow), range(2)))
    assert encoder.runs == 1
    assert sorted(was_there for _, _, was_there in caches) == [False, True]
    assert torch.equal(caches[0][0].splits["train"].states, caches[1][0].splits["train"].states)
