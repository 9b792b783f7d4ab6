"""`python -m sot_hf.predict`: a line out for each line in, as the model says of it alone, also in other precisions."""

import io
import json
import random
import sys

import pytest
import torch

from benchmarks import predict as benchmark
from sot_base.errors import UsageError
from sot_hf import predict
from sot_hf.export import export_onnx
from sot_hf.predictor import TextPredictor
from sot_text import predict_command
from sot_text.command_options import PRECISIONS
from tests.sot_hf.models import randomize, tiny_model, tokenizer

NAMES = {0: "no", 1: "maybe", 2: "yes"}
WORDS = ["the", "cat", "sees", "a", "dog", "today", "not", "well", ","]


def save(folder, kind="bert", **config):
    names = config.pop("id2label", NAMES)
    randomize(tiny_model(kind, id2label=names, num_labels=len(names), **config)).save_pretrained(folder)
    tokenizer().save_pretrained(folder)
    return folder


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return save(tmp_path_factory.mktemp("run"))


@pytest.fixture
def run(monkeypatch, capsys):
    """Run the command with a text as standard input; returns its output and what it says besides."""

    def run(*words, text=""):
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(text.encode())))
        capsys.readouterr()
        predict.main([str(word) for word in words])
        return capsys.readouterr()

    return run


def texts_of_all_lengths(count):
    rng = random.Random(3)
    return [" ".join(rng.choices(WORDS, k=rng.randrange(12))) for _ in range(count)]


def test_every_line_is_predicted_as_the_model_predicts_it_alone(model, run, monkeypatch):
    texts = texts_of_all_lengths(50)
    monkeypatch.setattr(predict_command, "CHUNK", 20)
    lines = run(model, "--batch-size", "7", text="".join(f"{text}\n" for text in texts)).out.splitlines()
    assert len(lines) == 50
    predictor = TextPredictor(str(model))
    for text, line in zip(texts, lines, strict=True):
        inputs = tokenizer()(text, return_tensors="pt")
        with torch.no_grad():
            expected = predictor.model(**inputs).logits[0].softmax(-1).tolist()
        label, *values = line.split("\t")
        assert [float(value) for value in values] == pytest.approx(expected, abs=1e-5)
        assert expected[["no", "maybe", "yes"].index(label)] == pytest.approx(max(expected), abs=1e-5)


def test_a_file_of_pairs_as_json(model, run, tmp_path):
    (tmp_path / "own.tsv").write_text("a\tb\nthe cat\ta dog\nnot\t\n")
    output = tmp_path / "out.jsonl"
    run(model, tmp_path / "own.tsv", "--text-columns", "a,b", "--json", "--output", output)
    found = [json.loads(line) for line in output.read_text().splitlines()]
    expected = TextPredictor(str(model)).predict([("the cat", "a dog"), ("not", "")])
    assert [row["label"] for row in found] == [row.label for row in expected]
    assert list(found[0]["probabilities"]) == ["no", "maybe", "yes"]


def test_several_labels_and_numbers(run, tmp_path):
    several = save(tmp_path / "several", problem_type="multi_label_classification")
    assert run(several, "--threshold", "0", text="the cat\n").out.startswith("no,maybe,yes\t")
    number = save(tmp_path / "number", id2label={0: "score"})
    assert float(run(number, text="the cat\n").out) == pytest.approx(
        TextPredictor(str(number)).predict([("the cat",)])[0].label, rel=1e-4
    )


def test_a_submission(run, tmp_path):
    folder = save(tmp_path / "run", id2label={0: "entailment", 1: "not_entailment"})
    (tmp_path / "test.tsv").write_text("index\tsentence1\tsentence2\n7\tthe cat\ta dog\n9\tnot\twell\n")
    run(folder, tmp_path / "test.tsv", "--task", "RTE", "--submission", tmp_path)
    lines = (tmp_path / "RTE.tsv").read_text().splitlines()
    assert [line.split("\t")[0] for line in lines] == ["index", "7", "9"]


@pytest.mark.parametrize("words", [["--precision", "bfloat16"], ["--precision", "int8"]])
def test_other_precisions_tell_how_far_they_are_off(model, run, words):
    text = "".join(f"{text}\n" for text in texts_of_all_lengths(40))
    exact, other = run(model, text=text), run(model, *words, text=text)
    assert exact.err == ""
    assert other.err.startswith(f"{words[1]} against float32: ")
    rows = [
        [[float(value) for value in line.split("\t")[1:]] for line in run.out.splitlines()] for run in (exact, other)
    ]
    gap = (torch.tensor(rows[0]) - torch.tensor(rows[1])).abs()
    assert 0 < gap.max() < 0.2
    assert f"differ by {gap.mean():.4f} on average" in other.err


def test_onnx_runtime_predicts_the_same(model, run, tmp_path):
    pytest.importorskip("onnxruntime")
    file = export_onnx(TextPredictor(str(model)).model, tmp_path / "model.onnx")
    text = "".join(f"{text}\n" for text in texts_of_all_lengths(20))
    exact, other = run(model, text=text), run(model, "--onnx", file, text=text)
    assert other.err.startswith("ONNX Runtime against float32: 20 of 20 labels are the same; ")
    for line, expected in zip(other.out.splitlines(), exact.out.splitlines(), strict=True):
        values = [[float(value) for value in row.split("\t")[1:]] for row in (line, expected)]
        assert values[0] == pytest.approx(values[1], abs=1e-4)


def test_the_last_token_is_the_class_token_of_a_decoder_in_any_batch(tmp_path, run):
    folder = save(tmp_path / "run", kind="gpt2")
    texts = texts_of_all_lengths(12)
    together = run(folder, text="".join(f"{text}\n" for text in texts)).out.splitlines()
    alone = [run(folder, text=f"{text}\n").out.strip() for text in texts]
    for line, expected in zip(together, alone, strict=True):
        values = [[float(value) for value in row.split("\t")[1:]] for row in (line, expected)]
        assert values[0] == pytest.approx(values[1], abs=1e-4)
    with pytest.raises(UsageError, match="a gpt2 has no linear layers to quantize: --precision int8; give bfloat16"):
        run(folder, "--precision", "int8", text="the cat\n")


@pytest.mark.parametrize(
    "words, message",
    [
        (["--onnx", "absent.onnx"], r"no such file: .*absent.onnx; write it with python -m sot_hf.export"),
        (["--onnx", "damaged.onnx"], r"onnxruntime cannot read it: .*damaged.onnx; write it with"),
        (["--onnx", "damaged.onnx", "--precision", "int8"], "ONNX Runtime runs in float32 on a CPU: --onnx; "),
        (["--batch-size", "0"], "--batch-size 0; give 1 or more"),
        (["--device", "tpux"], "no such device: tpux"),
        (["own.tsv"], r"the text columns are unknown: .*own.tsv; give --text-columns or --task"),
    ],
)
def test_options_that_cannot_work(model, run, words, message, tmp_path, monkeypatch):
    pytest.importorskip("onnxruntime")
    monkeypatch.chdir(tmp_path)
    (tmp_path / "damaged.onnx").write_bytes(b"no graph")
    (tmp_path / "own.tsv").write_text("a\nx\n")
    with pytest.raises(UsageError, match=message):
        run(model, *words, text="the cat\n")


def test_an_export_of_another_model_is_refused(model, run, tmp_path):
    pytest.importorskip("onnxruntime")
    other = TextPredictor(str(save(tmp_path / "other", id2label={0: "a", 1: "b"})))
    file = export_onnx(other.model, tmp_path / "other.onnx")
    with pytest.raises(UsageError, match=r"not an export of this model: .*other\.onnx; "):
        run(model, "--onnx", file, text="the cat\n")


def test_a_model_without_a_head(bert_folder, run):
    with pytest.raises(UsageError, match=r"no trained head: .*; give a model of sot_hf\.run_glue"):
        run(bert_folder, text="the cat\n")


def test_the_benchmark_compares_with_the_pipeline(run, tmp_path, capsys):
    folder = save(tmp_path / "run", id2label={0: "0", 1: "1"})
    (tmp_path / "dev.tsv").write_text("sentence\tlabel\nthe cat\t1\nnot\t0\n")
    words = [str(folder), str(tmp_path / "dev.tsv"), "--task", "SST-2", "--repetitions", "1", "--device", "cpu"]
    benchmark.main(words)
    lines = [line for line in capsys.readouterr().out.splitlines() if line.startswith("| ")]
    rows = {cells[0]: cells[1:] for cells in ([cell.strip() for cell in line.split("|")[1:-1]] for line in lines[1:])}
    sides = [f"{side}, {precision}" for side in ("sot_hf", "sot_fairseq") for precision in PRECISIONS]
    assert list(rows) == ["transformers pipeline", *sides]
    labels = [line.split("\t")[0] for line in run(folder, text="the cat\nnot\n").out.splitlines()]
    right = [found == truth for found, truth in zip(labels, "10", strict=True)]
    assert rows["sot_hf, float32"][2] == "2"
    assert float(rows["sot_hf, float32"][3]) == 50 * sum(right)
