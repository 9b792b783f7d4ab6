"""The store of token states by itself, with an encoder that is a table."""

import json
import os
import shutil
import signal
import time
from collections import namedtuple
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import torch

from sot_base.errors import UsageError
from sot_probe import store_writer
from sot_probe.store import open_or_create
from sot_probe.store_writer import SplitPlan, plan_batches

LENGTHS = {"train": np.array([3, 1, 4, 2]), "valid": np.array([2, 5])}
DESCRIPTION = {"checkpoint": "abc", "special_tokens": [0, None]}


class Encoder:
    """Random states of two layers; counts how often it runs, and can fail at a call of `encode`."""

    layers = ("layer-0", "layer-2")
    embed_dim = 8

    def __init__(self, scale=1.0, fail_at=None, fail=None, max_tokens=6):
        generator = torch.Generator().manual_seed(1)
        self.runs, self.calls, self.fail_at, self.fail = 0, 0, fail_at, fail
        self.plans = {name: SplitPlan(lengths, plan_batches(lengths, max_tokens)) for name, lengths in LENGTHS.items()}
        self.start = {"dense.weight": torch.arange(6.0).view(2, 3)}
        self.states = {
            split: [[scale * torch.randn(length, 8, generator=generator) for length in lengths] for _ in self.layers]
            for split, lengths in LENGTHS.items()
        }

    def encode(self, split, rows):
        if self.calls == self.fail_at:
            self.fail()
        self.calls += 1
        pad = torch.nn.utils.rnn.pad_sequence
        return [pad([layer[row] for row in rows], batch_first=True) for layer in self.states[split]]

    def __call__(self):
        self.runs += 1
        return self


def open_store(folder, create, description=DESCRIPTION, dtype="float32", **kwargs):
    return open_or_create(folder, "SST-2/tiny", description, dtype, create, **kwargs)


def all_files(folder):
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def test_rows_come_back_as_they_were_encoded(tmp_path):
    encoder = Encoder()
    store = open_store(tmp_path / "new", encoder)
    assert not store.was_there
    assert store.folder.parent == tmp_path / "new"
    assert store.folder.name.startswith("SST-2-tiny-")
    for split, expected in encoder.states.items():
        states = store.splits[split]
        rows = torch.arange(len(states)).flip(0)
        layers, padding_mask = states.gather(rows)
        assert states.embed_dim == 8
        assert torch.equal(states.lengths, torch.from_numpy(LENGTHS[split]))
        assert torch.equal((~padding_mask).sum(1), states.lengths[rows])
        for layer, own in zip(layers, expected, strict=True):
            assert torch.equal(layer[~padding_mask], torch.cat([own[row] for row in rows]))
        first, none = states.subset(torch.tensor([1, 0])).gather(torch.tensor([0]))
        assert none is None
        assert torch.equal(first[1][0], expected[1][1])
    assert torch.equal(store.start["dense.weight"], torch.arange(6.0).view(2, 3))


def test_half_precision_is_rounded_once(tmp_path):
    encoder = Encoder()
    states = open_store(tmp_path, encoder, dtype="float16").splits["train"]
    assert states.layers[0].dtype == torch.float16
    (first, _), _ = states.gather(torch.tensor([2]))
    assert first.dtype == torch.float32
    assert torch.equal(first[0], encoder.states["train"][0][2].half().float())


def test_the_second_time_nothing_is_encoded(tmp_path):
    encoder, said = Encoder(), []
    first = open_store(tmp_path, encoder, announce=said.append)
    second = open_store(tmp_path, encoder, announce=said.append)
    assert encoder.runs == 1
    assert (second.folder, second.was_there) == (first.folder, True)
    assert torch.equal(first.splits["valid"].layers[1], second.splits["valid"].layers[1])
    assert said == ["encoding 6 rows, 17 tokens, layer-0, layer-2: 0.0 MiB on disk"]


def test_writing_to_the_states_leaves_the_file_alone(tmp_path):
    encoder = Encoder()
    before = all_files(open_store(tmp_path, encoder).folder)
    store = open_store(tmp_path, encoder)
    store.splits["train"].layers[0].zero_()
    assert all_files(store.folder) == before
    assert open_store(tmp_path, encoder).was_there


@pytest.mark.parametrize("change", [{"checkpoint": "abd"}, {"special_tokens": [0, 2]}, {"more": 1}])
def test_another_description_is_another_entry(tmp_path, change):
    encoder = Encoder()
    first = open_store(tmp_path, encoder).folder
    assert open_store(tmp_path, encoder, {**DESCRIPTION, **change}).folder != first
    assert open_store(tmp_path, encoder, dtype="float16").folder != first
    assert encoder.runs == 3
    assert open_store(tmp_path, encoder).was_there


def cut(path):
    path.write_bytes(path.read_bytes()[:-5])


def flip(path):
    content = bytearray(path.read_bytes())
    content[-9] ^= 1
    path.write_bytes(content)


def describe_otherwise(path):
    path.write_text(json.dumps({**json.loads(path.read_text()), "description": {}}))


@pytest.mark.parametrize("name", ["train.layer-0.npy", "valid.rows.npy", "start.npz"])
@pytest.mark.parametrize("damage", [cut, flip, lambda path: path.unlink(), lambda path: path.write_bytes(b"")])
def test_a_damaged_entry_is_made_again(tmp_path, caplog, name, damage):
    encoder = Encoder()
    folder = open_store(tmp_path, encoder).folder
    before = all_files(folder)
    damage(folder / name)
    again = open_store(tmp_path, encoder)
    assert (again.folder, again.was_there, encoder.runs) == (folder, False, 2)
    assert all_files(folder).keys() == before.keys()
    assert (folder / "train.layer-0.npy").read_bytes() == before["train.layer-0.npy"]
    assert "token states are damaged" in caplog.text
    assert name in caplog.text
    assert open_store(tmp_path, encoder).was_there


@pytest.mark.parametrize(
    "damage", [cut, describe_otherwise, lambda path: path.write_text("[]"), lambda path: path.unlink()]
)
def test_a_damaged_header_is_written_again(tmp_path, caplog, damage):
    encoder = Encoder()
    folder = open_store(tmp_path, encoder).folder
    damage(folder / "header.json")
    assert not open_store(tmp_path, encoder).was_there
    assert "damaged" in caplog.text
    assert open_store(tmp_path, encoder).was_there
    assert encoder.runs == 2


def killed():
    os.kill(os.getpid(), signal.SIGKILL)


def interrupted():
    raise KeyboardInterrupt


@pytest.mark.parametrize("batch", range(5))
def test_what_was_whole_when_it_was_interrupted_is_not_encoded_again(tmp_path, monkeypatch, batch):
    monkeypatch.setattr(store_writer, "SHARD_TOKENS", 1)  # each batch is a shard
    expected = all_files(open_store(tmp_path / "whole", Encoder()).folder)
    with pytest.raises(KeyboardInterrupt):
        open_store(tmp_path / "cut", Encoder(fail_at=batch, fail=interrupted))
    rest = Encoder()
    found = open_store(tmp_path / "cut", rest)
    assert not found.was_there
    assert rest.calls == 5 - batch
    assert all_files(found.folder) == expected
    assert sorted(path.name for path in (tmp_path / "cut").iterdir()) == [
        f".{found.folder.name}.lock",
        found.folder.name,
    ]


def test_a_killed_process_leaves_whole_shards(tmp_path, monkeypatch):
    monkeypatch.setattr(store_writer, "SHARD_TOKENS", 1)
    expected = all_files(open_store(tmp_path / "whole", Encoder()).folder)
    child = os.fork()
    if child == 0:
        open_store(tmp_path / "cut", Encoder(fail_at=2, fail=killed))
        os._exit(0)
    assert os.WTERMSIG(os.waitpid(child, 0)[1]) == signal.SIGKILL
    rest = Encoder()
    assert all_files(open_store(tmp_path / "cut", rest).folder) == expected
    assert rest.calls == 3


def test_a_shard_that_was_damaged_since_is_encoded_again(tmp_path, monkeypatch):
    monkeypatch.setattr(store_writer, "SHARD_TOKENS", 1)
    expected = all_files(open_store(tmp_path / "whole", Encoder()).folder)
    with pytest.raises(KeyboardInterrupt):
        open_store(tmp_path / "cut", Encoder(fail_at=2, fail=interrupted))
    (unfinished,) = (path for path in (tmp_path / "cut").iterdir() if path.is_dir())
    content = bytearray((unfinished / "train.layer-0.npy").read_bytes())
    content[128] ^= 1  # the first state
    (unfinished / "train.layer-0.npy").write_bytes(content)
    rest = Encoder()
    assert all_files(open_store(tmp_path / "cut", rest).folder) == expected
    assert rest.calls == 5


def test_an_unfinished_entry_of_another_description_is_not_used(tmp_path):
    encoder = Encoder()
    name = open_store(tmp_path, encoder).folder.name
    (tmp_path / name).rename(tmp_path / f".{name}.unfinished")
    (tmp_path / f".{name}.unfinished" / "progress.json").write_text('{"description": {}, "shards": {}}')
    assert not open_store(tmp_path, encoder).was_there
    assert encoder.calls == 5 + 5


def test_rows_that_are_not_in_a_batch_are_noticed(tmp_path):
    encoder = Encoder()
    encoder.plans["train"] = SplitPlan(LENGTHS["train"], encoder.plans["train"].batches[:1])
    with pytest.raises(ValueError, match="1 of 4 rows of split 'train' are in its batches"):
        open_store(tmp_path, encoder)


def test_what_half_precision_cannot_hold_is_refused(tmp_path):
    encoder = Encoder(scale=1e6)
    with pytest.raises(UsageError, match=r"states of split 'train' do not fit into float16.*--cache-dtype float32"):
        open_store(tmp_path, encoder, dtype="float16")
    assert not open_store(tmp_path, encoder).was_there


def test_a_full_disk_is_told_before_writing(tmp_path, monkeypatch):
    usage = namedtuple("usage", "total used free")
    monkeypatch.setattr(shutil, "disk_usage", lambda path: usage(1, 1, 100))
    with pytest.raises(UsageError, match=r"0 MiB of token states, 0 MiB free: .*; give --cache-dir"):
        open_store(tmp_path, Encoder())


def test_a_file_in_its_place_is_left_alone(tmp_path):
    name = open_store(tmp_path, Encoder()).folder.name
    shutil.rmtree(tmp_path / name)
    (tmp_path / name).write_text("mine")
    with pytest.raises(UsageError, match="not a folder of token states: "):
        open_store(tmp_path, Encoder())
    assert (tmp_path / name).read_text() == "mine"


def test_of_two_that_want_the_same_entry_one_encodes(tmp_path):
    encoder = Encoder()

    def slow():
        time.sleep(0.3)
        return encoder()

    with ThreadPoolExecutor(2) as pool:
        stores = list(pool.map(lambda _: open_store(tmp_path, slow), range(2)))
    assert encoder.runs == 1
    assert sorted(store.was_there for store in stores) == [False, True]
    assert torch.equal(stores[0].splits["train"].layers[0], stores[1].splits["train"].layers[0])
