"""``python -m sot_hf.probe``: the store, the table, the model, and the agreement with fairseq's side."""

import json

import numpy as np
import pytest
import torch
from transformers import AutoModelForSequenceClassification, AutoTokenizer, GPT2Config, GPT2Model

from sot_base.errors import UsageError
from sot_hf import probe, run_glue
from sot_hf.export import example_inputs
from sot_hf.load_config import load_config
from sot_hf.token_states import TextEncoder, head_of, saved_layers
from sot_probe.trainee import Trainee
from tests.sot_hf.conftest import write_rows
from tests.sot_hf.models import DECODER, randomize, tokenizer

TINY = ("--mgcrp-heads", "2", "--mgcrp-q", "4", "--batch-size", "8", "--epochs", "3", "--seeds", "1", "2")


@pytest.fixture(scope="module")
def gpt_folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("gpt2")
    torch.manual_seed(0)
    randomize(GPT2Model(GPT2Config(**DECODER))).save_pretrained(folder)
    tokenizer().save_pretrained(folder)
    return folder


@pytest.fixture
def run(bert_folder, rte, tmp_path):
    """Runs the command line; returns what is in results.json."""

    def run_probe(*words, encoder=bert_folder, data=("--task", "RTE"), folder=rte, status=0):
        out = tmp_path / "out"
        arguments = ("--encoder", encoder, *data, "--data-dir", folder, "--output-dir", out, *TINY, *words)
        words = [*map(str, arguments), "--cache-dir", str(tmp_path / "store")]
        assert probe.main(words) == status
        return json.loads((out / "results.json").read_text())

    return run_probe


def dev_accuracy(model_folder, rte, tmp_path):
    """Of the dev file, by the command that evaluates models."""
    words = ["--model_name_or_path", str(model_folder), "--task_name", "RTE", "--data_dir", str(rte), "--do_eval"]
    run_glue.main([*words, "--output_dir", str(tmp_path / "eval"), "--use_cpu", "--disable_tqdm", "true"])
    return 100 * json.loads((tmp_path / "eval" / "eval_results.json").read_text())["eval_accuracy"]


def test_the_second_call_runs_no_encoder_and_gives_the_same_numbers(run, capsys, monkeypatch):
    heads = ("--heads", "cls", "mgcrp", "attention-words", "--head-dropout", "0.2")
    first = run(*heads, "--lr", "1e-3", "2e-2")
    out = capsys.readouterr().out
    assert "encoding 64 rows, " in out
    assert "MiB on disk" in out
    monkeypatch.setattr(TextEncoder, "encode", lambda *_: pytest.fail("the encoder ran"))
    second = run(*heads, "--lr", "1e-3", "2e-2")
    out = capsys.readouterr().out
    assert "read from the cache, no encoder was run, in " in out
    for results in (first, second):
        for head in results["heads"].values():
            for entry in head["seeds"].values():
                entry.pop("seconds")
    assert first == second
    assert list(first["heads"]) == ["cls", "mgcrp", "attention-words"]
    header = next(line for line in out.splitlines() if line.startswith("| task"))
    assert [cell.strip() for cell in header.strip("|").split("|")][3:] == [
        *("head", "n", "mean", "std", "parameters", "seconds")
    ]


def test_its_model_is_evaluated_loaded_and_exported(run, rte, tmp_path):
    results = run("--heads", "cls", "mgcrp", "--lr", "2e-2", "--cache-dtype", "float32")
    (label,) = (name for name, head in results["heads"].items() if "model" in head["seeds"]["1"])
    chosen = {name: head["chosen"]["held_out"] for name, head in results["heads"].items()}
    assert chosen[label] == max(chosen.values())
    entry = results["heads"][label]["seeds"]["1"]
    folder = tmp_path / "out" / "model"
    assert entry["model"] == str(folder)
    assert dev_accuracy(folder, rte, tmp_path) == pytest.approx(entry["metrics"]["dev"]["accuracy"])
    model = AutoModelForSequenceClassification.from_pretrained(folder)
    assert list(model.config.id2label.values()) == ["entailment", "not_entailment"]
    assert model(**example_inputs(model)).logits.shape == (2, 2)
    assert not list(folder.glob("*.bin")) + list(folder.glob("*.pt"))


@pytest.mark.parametrize("words", [("--layers", "0", "1", "2"), ("--layers", "1", "2", "--mix-layers")])
def test_layers_and_their_mix_are_models_too(run, rte, tmp_path, words):
    results = run("--heads", "mgcrp", *words, "--lr", "2e-2", "--save", "all", "--cache-dtype", "float32")
    assert len(results["heads"]) == (1 if "--mix-layers" in words else 3)
    for head in results["heads"].values():
        entry = head["seeds"]["2"]
        layers = load_config(entry["model"]).layers
        assert layers == (
            [1, 2]
            if "--mix-layers" in words
            else {"0": [0], "1": [1], "2": None}[entry["command"].split("--layers ")[1][0]]
        )
        assert dev_accuracy(entry["model"], rte, tmp_path) == pytest.approx(entry["metrics"]["dev"]["accuracy"])


@pytest.mark.parametrize("pair", ["words_cls", "x_y"])
@pytest.mark.parametrize("kind", ["encoder", "decoder"])
def test_pairs_of_layers_are_models_too(run, rte, bert_folder, gpt_folder, tmp_path, pair, kind):
    encoder = bert_folder if kind == "encoder" else gpt_folder
    words = ("--heads", "mgcrp", "--layers", "1", "-1", "--layer-pair", pair, "--lr", "2e-2")
    results = run(*words, "--cache-dtype", "float32", encoder=encoder)
    assert list(results["heads"]) == ["mgcrp"]
    entry = results["heads"]["mgcrp"]["seeds"]["1"]
    assert f"--layer-pair {pair} --layers 1 2" in entry["command"]
    config = load_config(entry["model"])
    assert (config.layers, config.layer_pair, config.head_config().two_layers) == ([1, 2], pair, pair == "x_y")
    assert dev_accuracy(entry["model"], rte, tmp_path) == pytest.approx(entry["metrics"]["dev"]["accuracy"])
    encoder = TextEncoder(entry["model"], saved_layers(config))
    encodings = encoder.tokenize(["the cat sees a dog", "well"])
    states = encoder.encode(encodings)
    expected = head_of(encoder.model)(states, torch.arange(states[0].shape[1]) >= torch.tensor([[5 + 2], [1 + 2]]))
    batch = encoder.tokenizer(["the cat sees a dog", "well"], padding=True, return_tensors="pt")
    if kind == "encoder":
        with torch.no_grad():
            torch.testing.assert_close(encoder.model(**batch).logits, expected, atol=1e-5, rtol=1e-5)
            parts = encoder.model.contributions(**batch)
        torch.testing.assert_close(parts.cls + parts.word, expected, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize(
    "words, message",
    [
        (("--layers", "1"), "--layer-pair needs two layers: --layers has 1; give two"),
        (("--layers", "1", "2", "--heads", "gap"), "not for --layer-pair x_y: --heads gap; give mgcrp or mgcrp-words"),
        (
            ("--train-layers", "1"),
            "--train-layers stores the layer below the trained ones: --layer-pair; leave out one",
        ),
    ],
)
def test_pairs_that_cannot_be_read(run, words, message):
    with pytest.raises(UsageError, match=message):
        run("--heads", "mgcrp", "--layer-pair", "x_y", *words)


def test_the_words_of_one_layer_need_a_class_token_beside_them(run):
    words = ("--layers", "1", "2", "--layer-pair", "words_cls")
    with pytest.raises(UsageError, match="not for --layer-pair words_cls: --heads gap-words; give heads with class"):
        run("--heads", "gap", "gap-words", *words)


def test_a_decoder(run, gpt_folder, rte, tmp_path):
    results = run("--heads", "mgcrp", "--lr", "2e-2", "--cache-dtype", "float32", encoder=gpt_folder)
    entry = results["heads"]["mgcrp"]["seeds"]["1"]
    assert dev_accuracy(entry["model"], rte, tmp_path) == pytest.approx(entry["metrics"]["dev"]["accuracy"])


@pytest.mark.parametrize("kind", ["regression", "multi-label"])
def test_own_data(run, tmp_path, kind):
    rng = np.random.default_rng(0)
    for split, count in (("train", 40), ("dev", 12)):
        texts = [" ".join(rng.choice(["cat", "dog", "sees", "well"], 4)) for _ in range(count)]
        labels = [str(text.split().count("cat") / 4) for text in texts]
        if kind == "multi-label":
            labels = [",".join(word for word in ("cat", "dog") if word in text.split()) for text in texts]
        write_rows(tmp_path / f"{split}.tsv", ("text", "label"), list(zip(texts, labels, strict=True)))
    own = ("--text-columns", "text", "--label-column", "label", f"--{kind}")
    balanced = ("--class-weights", "balanced") if kind == "multi-label" else ()
    results = run("--heads", "gap-words", "--lr", "3e-2", *balanced, data=own, folder=tmp_path)
    assert results["metric"] == ("f1_micro" if kind == "multi-label" else "pearson_and_spearman")
    config = load_config(str(tmp_path / "out" / "model"))
    assert config.problem_type == ("multi_label_classification" if kind == "multi-label" else "regression")


def test_states_and_logits_are_those_of_the_model(bert_folder):
    encoder = TextEncoder(str(bert_folder), layers=[0, 1, -1])
    texts = ["the cat sees a dog", "well", "not today the big bird likes the cat"]
    encodings = encoder.tokenize(texts)
    layers = encoder.encode(encodings)
    batch = AutoTokenizer.from_pretrained(bert_folder)(texts, padding=True, return_tensors="pt")
    with torch.no_grad():
        expected = encoder.model.backbone(**batch, output_hidden_states=True).hidden_states
    valid = batch["attention_mask"].bool()
    for found, layer in zip(layers, (expected[0], expected[1], expected[2]), strict=True):
        torch.testing.assert_close(found[:, : valid.shape[1]][valid], layer[valid], atol=1e-5, rtol=1e-5)
    head = encoder.create_head({"num_heads": 2, "q_dim": 4}, 2, encoder.start)
    assert torch.equal(head.dense.weight, encoder.start["dense.weight"])
    before = encoder.encode(encodings)  # making heads leaves the backbone as it is
    assert all(torch.equal(first, second) for first, second in zip(layers, before, strict=True))


def test_usage_errors(run, tmp_path):
    with pytest.raises(UsageError, match=r"no such layer: --layers 3; the encoder has 0 \(its embeddings\) to 2"):
        run("--layers", "3")
    with pytest.raises(UsageError, match="num_heads must be a positive integer, got 0"):
        run("--mgcrp-heads", "0")
    with pytest.raises(UsageError, match="no such device: nowhere"):
        run("--device", "nowhere")
    with pytest.raises(UsageError, match="a regression has no classes: --class-weights balanced"):
        run("--class-weights", "balanced", data=("--text-columns", "a", "--label-column", "b", "--regression"))
    with pytest.raises(SystemExit):
        run("--held-out", "1")
    assert not (tmp_path / "store").exists()


def test_all_models_are_saved_although_the_first_seed_failed(run, monkeypatch, capsys):
    evaluate = Trainee.evaluate

    def fail_first(self, *args):
        evaluate(self, *args)
        if not started or self in started:
            started.append(self)
            self.give_up("the first training")

    started: list[Trainee] = []
    monkeypatch.setattr(Trainee, "evaluate", fail_first)
    (entry,) = run("--heads", "gap", "--save", "all", "--held-out", "0", status=1)["heads"]["gap"]["seeds"].items()
    assert entry[0] == "2"
    assert load_config(entry[1]["model"]).num_labels == 2
    assert "1 trainings failed: gap, seed 1 (the first training)" in capsys.readouterr().err


def test_a_file_in_the_place_of_the_output_is_found_before_the_encoder_runs(run, tmp_path, monkeypatch):
    (tmp_path / "out").touch()
    monkeypatch.setattr(TextEncoder, "encode", lambda *_: pytest.fail("the encoder ran"))
    with pytest.raises(FileExistsError):
        run("--heads", "gap")
