"""The probes of fairseq's and of Hugging Face's side on the same encoder and the same texts."""

import random
from argparse import ArgumentParser

import pytest
import torch

from sot_fairseq import probe as fairseq_probe
from sot_hf import probe as hf_probe
from sot_probe.layer_head import LayerHead
from sot_probe.objective import Objective, as_targets
from sot_probe.options import add_probe_options
from sot_probe.store import open_or_create
from sot_probe.trainee import Candidate, TrainingSettings
from sot_probe.training import Split, predict, train_heads
from sot_text.command_options import add_data_options
from tests.sot_fairseq.bert_files import VOCAB, random_bert, save_bert
from tests.sot_fairseq.conftest import write_rows

WORDS = [word for word in VOCAB if word.isalpha()]


@pytest.fixture(scope="module")
def sides(tmp_path_factory):
    """Both sides of a probe, and their states in single precision."""
    folder = tmp_path_factory.mktemp("agree")
    torch.manual_seed(0)
    encoder = save_bert(folder, random_bert())
    rng = random.Random(1)
    for split, count in (("train", 40), ("dev", 16)):
        texts = [" ".join(rng.choice(WORDS) for _ in range(rng.randint(1, 8))) for _ in range(count)]
        rows = [(text, str(int("cat" in text))) for text in texts]
        write_rows(folder / "SST-2" / f"{split}.tsv", ("sentence", "label"), rows)
    parser = ArgumentParser()
    add_data_options(parser)
    add_probe_options(parser)
    words = ["--encoder", str(encoder), "--task", "SST-2", "--data-dir", str(folder), "--layers", "1", "-1"]
    words += ["--save", "none", "--device", "cpu", "--output-dir", str(folder / "out")]
    args = parser.parse_args(words)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SOT_CACHE", str(folder / "cache"))
        found = [fairseq_probe.FairseqProbe(args), hf_probe.HuggingFaceProbe(args)]
    stores = [
        open_or_create(folder / str(number), "x", side.describe(), "float32", side.create_encoder)
        for number, side in enumerate(found)
    ]
    return found, stores


def test_states_and_targets_are_the_same(sides):
    (first, second), stores = sides
    for split in ("train", "dev"):
        assert (first.targets[split] == second.targets[split]).all()
        rows = torch.arange(len(stores[0].splits[split]))
        (ours, mask), (theirs, other_mask) = (store.splits[split].gather(rows) for store in stores)
        assert torch.equal(mask, other_mask)
        for layer, other in zip(ours, theirs, strict=True):
            torch.testing.assert_close(layer[~mask], other[~mask], atol=1e-5, rtol=1e-5)
    assert stores[0].start.keys() == stores[1].start.keys()
    for name, value in stores[0].start.items():
        assert torch.equal(value, stores[1].start[name])


@pytest.mark.parametrize("settings", [{"num_heads": 2, "q_dim": 4}, {"fusion": "words", "pooling": "gap"}])
def test_a_training_gives_the_same_logits(sides, settings):
    """From the same start and in the same order, with the same optimizer."""
    logits = []
    for side, store, own in zip(*sides, ({}, {"cls_pooler_drop_rate": 0.0}), strict=True):  # BERT's own is 0.1

        def create(side=side, store=store, own=own):
            torch.manual_seed(5)
            return LayerHead(side.create_head({**settings, **own}, store.start), layer=1)

        data = Split(store.splits["train"], as_targets(side.targets["train"], "classes"))
        candidate = Candidate(create, TrainingSettings(lr=0.01, batch_size=40, epochs=5))
        (outcome,) = train_heads([candidate], data, Objective("classes", 2), seed=1)
        logits += predict([outcome.head], store.splits["dev"])
    assert logits[0].std() > 0.01
    torch.testing.assert_close(logits[0], logits[1], atol=1e-4, rtol=1e-4)
