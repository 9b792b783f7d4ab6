"""From a probe to fine-tuning: the probe's head is where the training starts, and the top layers alone are trained."""

import json

import pytest
import torch
from transformers import AutoModel, AutoModelForSequenceClassification

from sot_base.errors import UsageError
from sot_hf import SoTForSequenceClassification, probe, run_glue
from sot_hf.token_states import TextEncoder
from sot_probe.layer_head import LayerHead
from tests.sot_hf.models import BACKBONES, batch, randomize, tiny_model, tokenizer

TINY = ("--mgcrp-heads", "2", "--mgcrp-q", "4", "--batch-size", "8", "--epochs", "2", "--seeds", "1")
TEXTS = [("the cat sees", "a dog likes the bird"), ("well", "not"), ("today the big bird", "small")]


@pytest.fixture
def run_probe(bert_folder, rte, tmp_path):
    """Runs the probe; returns the folder of its model, and what is in results.json."""

    def run(*words, encoder=bert_folder):
        out = tmp_path / "probe"
        arguments = ["--encoder", encoder, "--task", "RTE", "--data-dir", rte, "--output-dir", out, *TINY, *words]
        assert probe.main([*map(str, arguments), "--cache-dir", str(tmp_path / "store")]) == 0
        return out / "model", json.loads((out / "results.json").read_text())

    return run


@pytest.fixture
def fine_tune(rte, tmp_path):
    """Trains a model for an epoch; returns it."""

    def train(model, *words):
        out = tmp_path / "run"
        arguments = ["--model_name_or_path", model, "--data_dir", rte, "--output_dir", out, "--do_train"]
        arguments += [] if "--text_columns" in words else ["--task_name", "RTE"]
        settings = ["--num_train_epochs", "1", "--use_cpu", "--disable_tqdm", "true", "--overwrite_output_dir"]
        run_glue.main([*map(str, arguments), *settings, *words])
        return SoTForSequenceClassification.from_pretrained(out)

    return train


def changed(before, after):
    after = after.state_dict()
    return {name for name, value in before.state_dict().items() if not torch.equal(value, after[name])}


def test_a_training_starts_from_the_head_of_the_probe(run_probe, fine_tune, monkeypatch, capsys):
    folder, _ = run_probe("--heads", "gap", "--lr", "2e-2")
    model = AutoModelForSequenceClassification.from_pretrained(folder)
    first = []
    step = run_glue.HeadTrainer.training_step

    def training_step(self, model, inputs, *args, **kwargs):
        if not first:
            given = {name: value for name, value in self._prepare_inputs(dict(inputs)).items() if name != "labels"}
            with torch.no_grad():
                first.append((given, model.eval()(**given).logits))
        return step(self, model, inputs, *args, **kwargs)

    monkeypatch.setattr(run_glue.HeadTrainer, "training_step", training_step)
    tuned = fine_tune(folder, "--learning_rate", "1e-3", "--strict_head")
    assert f"the training starts from the saved head (pooling gap, fusion sum_fc): {folder}" in capsys.readouterr().out
    ((inputs, logits),) = first
    torch.testing.assert_close(model(**inputs).logits, logits, atol=1e-5, rtol=1e-5)
    names = changed(model, tuned)
    assert any("encoder.layer.0" in name for name in names)
    assert "classifier.word_fc.weight" in names


def test_other_classes_are_refused_with_strict_head(run_probe, fine_tune):
    folder, _ = run_probe("--heads", "gap")
    own = ("--text_columns", "sentence1", "--label_column", "index")
    with pytest.raises(UsageError, match="the saved head has other labels"):
        fine_tune(folder, *own, "--strict_head")


def test_the_top_layers_alone_are_trained(bert_folder, fine_tune):
    tuned = fine_tune(bert_folder, "--train_layers", "1", "--learning_rate", "1e-2", "--mgcrp-heads", "2")
    plain = AutoModel.from_pretrained(bert_folder)
    names = changed(plain.encoder, tuned.backbone.encoder)
    assert names
    assert all(name.startswith("layer.1.") for name in names)
    assert not changed(plain.embeddings, tuned.backbone.embeddings)


@pytest.mark.parametrize("kind", ["bert", "gpt2"])
def test_frozen_layers_have_neither_dropout_nor_gradients(kind):
    model = tiny_model(kind, layers=3).train()
    model.train_top_layers(1)
    layers = model.backbone.h if kind == "gpt2" else model.backbone.encoder.layer
    below = []
    layers[2].register_forward_pre_hook(lambda layer, args: below.append(args[0]))
    model(**batch()).loss.backward()
    assert not below[0].requires_grad  # so that nothing is stored for a backward pass
    learning = [name for name, parameter in model.backbone.named_parameters() if parameter.grad is not None]
    final_norm = 2 if kind == "gpt2" else 0
    assert len(learning) == sum(1 for _ in layers[2].parameters()) + final_norm
    assert [layer.training for layer in layers] == [False, False, True]
    model.freeze_backbone(False)
    assert all(parameter.requires_grad for parameter in model.backbone.parameters())
    assert model.config.train_layers is None
    model.train_top_layers(0)
    assert model.config.freeze_backbone


@pytest.mark.parametrize("kind", sorted(set(BACKBONES) - {"roberta"}))
def test_top_layers_run_on_stored_states(kind, tmp_path):
    torch.manual_seed(0)
    config = BACKBONES[kind]()
    config.num_hidden_layers = 3
    randomize(AutoModel.from_config(config)).save_pretrained(tmp_path)
    tokenizer().save_pretrained(tmp_path)
    encoder = TextEncoder(str(tmp_path), train_layers=2)
    encodings = encoder.tokenize(TEXTS)
    head = encoder.create_head({"num_heads": 2, "q_dim": 4}, 2, {})
    top = LayerHead(head, top_layers=encoder.create_top_layers(2, encodings)).eval()
    (states,) = encoder.encode(encodings)
    padding = torch.arange(states.shape[1]) >= torch.tensor([[len(row["input_ids"])] for row in encodings])
    logits = top([states], padding)
    model = encoder.model_with(top, {"num_heads": 2, "q_dim": 4}, {0: "a", 1: "b"}, "single_label_classification")
    inputs = encoder.tokenizer.pad(encodings, padding=True, return_tensors="pt")
    torch.testing.assert_close(logits, model(**inputs).logits, atol=1e-5, rtol=1e-5)
    logits.sum().backward()
    learning = [part for part in top.top_layers.parameters() if part.requires_grad]
    assert all(part.grad is not None for part in learning)


def test_a_probe_trains_layers_and_saves_them(run_probe, bert_folder, rte, tmp_path):
    words = ("--heads", "gap", "--train-layers", "1", "--lr", "2e-2", "--encoder-lr-scale", "0.5", "1")
    folder, results = run_probe(*words, "--cache-dtype", "float32")
    entry = results["heads"]["gap"]["seeds"]["1"]
    assert "--train-layers 1" in entry["command"]
    assert results["heads"]["gap"]["chosen"]["encoder_lr_scale"] in (0.5, 1.0)
    model = SoTForSequenceClassification.from_pretrained(folder)
    names = changed(AutoModel.from_pretrained(bert_folder).encoder, model.backbone.encoder)
    assert names
    assert all(name.startswith("layer.1.") for name in names)
    words = ["--model_name_or_path", str(folder), "--task_name", "RTE", "--data_dir", str(rte), "--do_eval"]
    run_glue.main([*words, "--output_dir", str(tmp_path / "eval"), "--use_cpu", "--disable_tqdm", "true"])
    found = json.loads((tmp_path / "eval" / "eval_results.json").read_text())
    assert 100 * found["eval_accuracy"] == pytest.approx(entry["metrics"]["dev"]["accuracy"])


@pytest.mark.parametrize("pair", ["words_cls", "x_y"])
def test_two_layers_are_read_from_the_command_line(bert_folder, fine_tune, tmp_path, pair):
    words = ("--layers", "1", "-1", "--layer_pair", pair, "--mgcrp-heads", "2")
    tuned = fine_tune(bert_folder, *words, "--learning_rate", "1e-3")
    assert (tuned.config.layers, tuned.config.layer_pair) == ([1, 2], pair)
    tuned.save_pretrained(tmp_path / "tuned")
    tokenizer().save_pretrained(tmp_path / "tuned")
    assert fine_tune(tmp_path / "tuned", "--strict_head").config.layer_pair == pair
    assert fine_tune(tmp_path / "tuned", *words, "--strict_head").config.layer_pair == pair
    message = rf"the saved head reads layers 1 2 \(pair: {pair}\), not 2 \(pair: None\)"
    with pytest.raises(UsageError, match=message):
        fine_tune(tmp_path / "tuned", "--layers", "-1", "--strict_head")
    assert fine_tune(tmp_path / "tuned", "--layers", "-1").config.layers is None


def test_usage_errors(run_probe, fine_tune, bert_folder):
    for words, message in (
        (("--train-layers", "3"), "the encoder has 2 layers: --train-layers 3; give at most 2"),
        (("--train-layers", "1", "--layers", "1"), "--train-layers stores the layer below the trained ones: --layers"),
        (("--encoder-lr-scale", "1"), "no layer of the encoder is trained: --encoder-lr-scale; give --train-layers K"),
    ):
        with pytest.raises(UsageError, match=message):
            run_probe(*words)
    for words, message in (
        (("--train_layers", "3"), "the backbone has 2 layers: --train_layers 3; give at most 2"),
        (("--train_layers", "-1"), "--train_layers -1 is out of range: the command line; give 0 or more"),
        (
            ("--layer_pair", "x_y", "--layers", "1"),
            "not a pair of layers: --layer_pair x_y; give words_cls or x_y, and",
        ),
        (("--layer_pair", "y_x", "--layers", "1", "2"), "not a pair of layers: --layer_pair y_x; give words_cls or"),
        (("--layers", "3"), r"layers must be different numbers from 0 to 2, got \[3\]"),
        (("--train_layers", "1", "--freeze_backbone"), "--freeze_backbone is --train_layers 0: the command line"),
    ):
        with pytest.raises(UsageError, match=message):
            fine_tune(bert_folder, *words)
