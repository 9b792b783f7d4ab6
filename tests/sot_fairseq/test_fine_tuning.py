"""From a probe to fine-tuning: the probe's head is where the training starts, and the top layers alone are trained."""

import json
import random

import pytest
import torch
from fairseq.data.data_utils import collate_tokens
from fairseq.trainer import Trainer

import sot_fairseq
from sot_base.errors import UsageError
from sot_base.safe_checkpoint import read_checkpoint
from sot_fairseq import encoders, prepare, probe
from sot_fairseq.evaluate import evaluate
from sot_fairseq.probing.encoding import ProbeTask
from sot_probe.layer_head import LayerHead
from tests.sot_fairseq.bert_files import VOCAB, random_bert, save_bert
from tests.sot_fairseq.conftest import run_train, write_rows

WORDS = [word for word in VOCAB if word.isalpha()]
HEAD = "classification_heads.my_head."
LAYER = "encoder.sentence_encoder.layers."


@pytest.fixture(scope="module")
def glue(tmp_path_factory):
    folder = tmp_path_factory.mktemp("glue")
    rng = random.Random(1)
    for split, count in (("train", 40), ("dev", 16)):
        texts = [" ".join(rng.choice(WORDS) for _ in range(rng.randint(1, 8))) for _ in range(count)]
        rows = [(text, str(int("cat" in text))) for text in texts]
        write_rows(folder / "SST-2" / f"{split}.tsv", ("sentence", "label"), rows)
    return folder


@pytest.fixture(scope="module")
def run_probe(glue, tmp_path_factory):
    """Runs the probe; returns its folder, which holds the model and the data."""
    torch.manual_seed(0)
    encoder = save_bert(tmp_path_factory.mktemp("bert"), random_bert())

    def run(*words):
        out = tmp_path_factory.mktemp("probe")
        data = ("--encoder", encoder, "--task", "SST-2", "--data-dir", glue, "--output-dir", out, "--seeds", "1")
        settings = (
            "--mgcrp-heads",
            "2",
            "--mgcrp-q",
            "4",
            "--mgcrp-k",
            "3",
            "--epochs",
            "2",
            "--batch-size",
            "8",
            "--lr",
            "2e-2",
        )
        assert probe.main([str(word) for word in (*data, *settings, "--cache-dtype", "float32", *words)]) == 0
        return out

    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SOT_CACHE", str(tmp_path_factory.mktemp("cache")))
        yield run


@pytest.fixture(scope="module")
def probed(run_probe):
    return run_probe("--heads", "mgcrp")


def fine_tune(out, save_dir, *words, data=None):
    arch = encoders.find(str(out / "model")).arch_args
    checkpoint = out / "model" / "checkpoint_best.pt"
    start = ["--finetune-from-model", checkpoint, "--classification-head-name", "my_head"]
    return run_train(data or out / "data", save_dir, *arch, *start, *words)["model"]


def changed(before, after):
    return {name for name in before if name in after and not torch.equal(before[name], after[name])}


def test_a_training_starts_from_the_head_of_the_probe(probed, tmp_path, monkeypatch, caplog):
    first = []
    step = Trainer.train_step

    def train_step(self, samples, *args, **kwargs):
        if not first:
            given = samples[0]["net_input"]
            with torch.no_grad():
                logits, _ = self.model.eval()(**given, features_only=True, classification_head_name="my_head")
            first.append((given, logits))
        return step(self, samples, *args, **kwargs)

    monkeypatch.setattr(Trainer, "train_step", train_step)
    words = ("--keep-head", "--head-lr-scale", "2", "--save-interval-updates", "3", "--max-update")
    fine_tune(probed, tmp_path / "run", *words, "3")
    assert f"the training starts from the saved head (mgcrp): {probed / 'model'}" in caplog.text
    model = sot_fairseq.from_pretrained(probed / "model").model
    ((given, logits),) = first
    with torch.no_grad():
        expected, _ = model(**given, features_only=True, classification_head_name="sentence_classification_head")
    torch.testing.assert_close(logits, expected, atol=1e-5, rtol=1e-5)
    fine_tune(probed, tmp_path / "run", *words, "6")  # resumes under its own name of the head
    tuned = sot_fairseq.from_pretrained(tmp_path / "run")
    assert list(tuned.model.classification_heads) == ["my_head"]
    assert any(name.startswith(f"{LAYER}0.") for name in changed(model.state_dict(), tuned.model.state_dict()))


def test_a_head_that_does_not_fit_is_refused(probed, data, tmp_path):
    for words, message in (
        (("--head-pooling", "max"), "--head-pooling max, but the head has mgcrp: .*checkpoint_best.pt; leave it out"),
        (("--finetune-from-model", probed / "data" / "preprocess.json"), "preprocess.json"),
    ):
        with pytest.raises(UsageError, match=message):
            fine_tune(probed, tmp_path, "--keep-head", *words)
    with pytest.raises(UsageError, match="the checkpoint has the labels 0, 1, the data bad, good"):
        fine_tune(probed, tmp_path, "--keep-head", data=data)
    with pytest.raises(UsageError, match="no checkpoint whose head is kept: --keep-head; give --finetune-from-model"):
        run_train(data, tmp_path, "--keep-head")


def test_the_scripts_start_from_a_probe(probed, glue, tmp_path):
    words = ["--task", "SST-2", "--encoder", probed / "model", "--data-dir", glue, "--output-dir", tmp_path / "run"]
    prepare.main([str(word) for word in (*words, "--heads", "mgcrp", "--", "--keep-head")])
    command = (tmp_path / "run" / "mgcrp" / "seed-1" / "command.txt").read_text()
    assert f"--finetune-from-model {probed / 'model' / 'checkpoint_best.pt'}" in command
    assert "--head-pooling" not in command
    with pytest.raises(UsageError, match=r"--keep-head trains the head of .*: --heads \(HEAD\) mgcrp cls; give mgcrp"):
        prepare.main([str(word) for word in (*words, "--", "--keep-head")])


def test_the_top_layers_alone_are_trained(probed, tmp_path):
    before = read_checkpoint(probed / "model" / "checkpoint_best.pt", lazy=False)["model"]
    for count, layers in (("1", {"2"}), ("0", set())):
        after = fine_tune(probed, tmp_path / count, "--train-layers", count)
        names = changed(before, after)
        assert {name.removeprefix(LAYER)[0] for name in names} == layers
        assert all(name.startswith(LAYER) for name in names)
    for words, message in (
        (("--train-layers", "4"), "the encoder has 3 layers: --train-layers 4; give 0 to 3"),
        (("--train-layers", "1", "--freeze-backbone"), "--freeze-backbone is --train-layers 0"),
    ):
        with pytest.raises(UsageError, match=message):
            fine_tune(probed, tmp_path / "wrong", *words)


def test_frozen_layers_have_neither_dropout_nor_gradients(probed):
    model, _ = ProbeTask(encoders.find(str(probed / "model")), probed / "data").load_model()
    model.freeze_backbone, model.train_layers = False, 1
    model.encoder.requires_grad_(True)
    model.prepare_for_classification()
    model.train()
    layers = model.encoder.sentence_encoder.layers
    below = []
    layers[2].register_forward_pre_hook(lambda layer, args: below.append(args[0]))
    for _ in range(2):
        model(
            torch.tensor([[0, 6, 7, 8, 2]]), features_only=True, classification_head_name="sentence_classification_head"
        )
    assert torch.equal(*below)
    assert not below[0].requires_grad
    assert [layer.training for layer in layers] == [False, False, True]


@pytest.mark.parametrize("count", [1, 3])
def test_top_layers_run_on_stored_states(probed, count):
    task = ProbeTask(encoders.find(str(probed / "model")), probed / "data", train_layers=count)
    head = task.create_head({"num_heads": 2, "q_dim": 4})
    top = LayerHead(head, top_layers=task.create_top_layers(count)).eval()
    rows = task.splits["dev"].tokens
    batch = collate_tokens([rows[row] for row in range(len(rows))], pad_idx=1)
    (states,) = task.create_encoder().encode("dev", range(len(rows)))
    model, _ = task.load_model()
    model.classification_heads["head"] = head
    expected, _ = model(batch, features_only=True, classification_head_name="head")
    logits = top([states], batch.eq(1))
    torch.testing.assert_close(logits, expected, atol=1e-5, rtol=1e-5)
    logits.sum().backward()
    assert all(parameter.grad is not None for parameter in top.top_layers.parameters())


def test_a_probe_trains_layers_and_saves_them(run_probe, probed):
    out = run_probe("--heads", "mgcrp", "--train-layers", "1", "--encoder-lr-scale", "0.5")
    entry = json.loads((out / "results.json").read_text())["heads"]["mgcrp"]["seeds"]["1"]
    before, after = (
        read_checkpoint(folder / "model" / "checkpoint_best.pt", lazy=False)["model"] for folder in (probed, out)
    )
    layers = {name for name in changed(before, after) if not name.startswith("classification_heads.")}
    assert layers
    assert all(name.startswith(f"{LAYER}2.") for name in layers)
    found = evaluate(sot_fairseq.from_pretrained(out / "model"), out / "data")["dev"]["accuracy"]
    assert found == pytest.approx(entry["metrics"]["dev"]["accuracy"])
