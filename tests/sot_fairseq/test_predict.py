"""`python -m sot_fairseq.predict`: every line in gives a line out, in order, as the model says of it alone."""

import io
import json
import random
import subprocess
import sys

import pytest
import torch

import sot_fairseq
from sot_base.errors import UsageError
from sot_fairseq import predict
from sot_fairseq.prediction import predictor as hub
from sot_text import predict_command
from sot_text.precision import compare_predictions
from tests.sot_fairseq.conftest import preprocess_folder, run_train, sentence, write_rows
from tests.sot_fairseq.glue_files import train_task
from tests.support import REPOSITORY


@pytest.fixture(scope="module")
def model(data, tmp_path_factory):
    folder = tmp_path_factory.mktemp("single")
    run_train(data, folder, "--max-epoch", "3")
    return folder


@pytest.fixture(scope="module")
def mnli(tmp_path_factory):
    return train_task(tmp_path_factory.mktemp("mnli"), "MNLI")


@pytest.fixture(scope="module")
def stsb(tmp_path_factory):
    return train_task(tmp_path_factory.mktemp("stsb"), "STS-B", "--max-epoch", "2", "--lr", "0.02")


@pytest.fixture
def run(monkeypatch, capsys):
    """Run the command with a text as standard input; returns the lines of its output."""

    def run(*words, text=""):
        data = text if isinstance(text, bytes) else text.encode()
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(data)))
        capsys.readouterr()
        predict.main([str(word) for word in words])
        return capsys.readouterr().out.splitlines()

    return run


def test_a_thousand_lines_of_all_lengths_are_predicted_as_each_alone(model, run, monkeypatch):
    rng = random.Random(7)
    texts = [sentence(rng, longest=30) for _ in range(990)] + [""] * 10
    rng.shuffle(texts)
    monkeypatch.setattr(predict_command, "CHUNK", 300)
    lines = run(model, "--batch-size", "13", text="".join(f"{text}\n" for text in texts))
    assert len(lines) == 1000
    predictor = sot_fairseq.from_pretrained(model)
    assert {line.split("\t")[0] for line in lines} == {"bad", "good"}
    for row in rng.sample(range(1000), 200):
        alone = predictor.predict([texts[row]])[0]
        label, *values = lines[row].split("\t")
        assert [float(value) for value in values] == pytest.approx(list(alone.probabilities.values()), abs=2e-6)
        assert label == alone.label or abs(alone.probabilities["bad"] - 0.5) < 1e-5


def test_lines_end_at_line_feeds_only(model, run):
    text = "\ufeffthe cat\r\n\n  \na\u2028dog\x0bsees\rnot\n\xa0\nno end".encode()
    lines = run(model, "--json", text=text)
    assert len(lines) == 6
    expected = sot_fairseq.from_pretrained(model).predict(["the cat", "", "", "a\u2028dog\x0bsees\rnot", "", "no end"])
    for line, prediction in zip(lines, expected, strict=True):
        found = json.loads(line)
        assert found["label"] == prediction.label
        assert found["probabilities"] == pytest.approx(prediction.probabilities)
    assert run(model) == run(model, "--json") == []


def test_pairs(mnli, run):
    _, _, folder = mnli
    lines = run(folder, text="the cat\ta dog\n\nnot\t\n")
    expected = sot_fairseq.from_pretrained(folder).predict([("the cat", "a dog"), ("", ""), ("not", "")])
    assert [line.split("\t")[0] for line in lines] == [prediction.label for prediction in expected]
    with pytest.raises(UsageError, match=r"1 field\(s\) where 2 are expected: standard input line 2; give two texts"):
        run(folder, text="a\tb\nthe cat\n")


def test_wrong_lines_are_named_and_leave_no_output(model, run, tmp_path):
    with pytest.raises(UsageError, match=r"2 field\(s\) where 1 are expected: standard input line 3"):
        run(model, "--output", tmp_path / "out.tsv", text="a\n\nb\tc\n")
    with pytest.raises(UsageError, match="not UTF-8: standard input line 2"):
        run(model, "--output", tmp_path / "out.tsv", text=b"a\n\xff\n")
    assert list(tmp_path.iterdir()) == []


def test_a_file_with_named_columns(model, run, tmp_path):
    texts = ["the cat", "", 'a "dog', "not"]
    write_rows(tmp_path / "own.tsv", ("number", "text"), [(str(row), text) for row, text in enumerate(texts)])
    out = tmp_path / "deep" / "out.tsv"
    assert run(model, tmp_path / "own.tsv", "--text-columns", "text", "--output", out) == []
    header, *lines = out.read_text().splitlines()
    assert header == "label\tbad\tgood"
    assert lines == run(model, text="".join(f"{text}\n" for text in texts))  # which has no header line
    with pytest.raises(UsageError, match=r"no column 'body': .*own.tsv line 1 has number, text"):
        run(model, tmp_path / "own.tsv", "--text-columns", "body")
    with pytest.raises(UsageError, match=r"trained on 1 text\(s\) a row, not on 2 \(number, text\): .*own.tsv"):
        run(model, tmp_path / "own.tsv", "--text-columns", "number,text")
    with pytest.raises(UsageError, match=r"the text columns are unknown: .*own.tsv; give --text-columns"):
        run(model, tmp_path / "own.tsv")
    with (tmp_path / "own.tsv").open("a") as stream:
        stream.write("5\ttoo\tmany\n")
    with pytest.raises(UsageError, match=r"3 fields where 2 are expected: .*own.tsv line 6"):
        run(model, tmp_path / "own.tsv", "--text-columns", "text")


def test_files_of_a_glue_task(mnli, run, tmp_path):
    tsv, _, folder = mnli
    expected = run(folder, tsv / "dev_matched.tsv")
    assert len(expected) == 32
    (tmp_path / "renamed.tsv").write_bytes((tsv / "dev_matched.tsv").read_bytes())
    assert run(folder, tmp_path / "renamed.tsv") == expected
    assert run(folder, tmp_path / "renamed.tsv", "--task", "mnli") == expected
    assert len(run(folder, tsv / "test_mismatched.tsv")) == 14
    write_rows(tmp_path / "other.tsv", ("a", "b"), [("x", "y")])
    with pytest.raises(UsageError, match=r"not a file of MNLI: .*other.tsv line 1; name its text columns"):
        run(folder, tmp_path / "other.tsv")
    with pytest.raises(UsageError, match=r"trained on 2 text\(s\) a row, not on 1"):
        run(folder, tsv / "test_matched.tsv", "--text-columns", "sentence1")


def test_cola_has_a_header_line_in_its_test_file_only(model, run, tmp_path):
    (tmp_path / "dev.tsv").write_text("gj04\t1\t\tthe cat\ngj04\t0\t*\tnot\n")
    write_rows(tmp_path / "test.tsv", ("index", "sentence"), [("0", "the cat"), ("1", "not")])
    expected = ["label\tbad\tgood", *run(model, text="the cat\nnot\n")]
    for name in ("dev", "test"):
        assert run(model, tmp_path / f"{name}.tsv", "--task", "CoLA") == expected
        (tmp_path / f"{name}.tsv").rename(tmp_path / f"my_{name}.tsv")
        assert run(model, tmp_path / f"my_{name}.tsv", "--task", "CoLA") == expected
    write_rows(tmp_path / "dev.tsv", ("index", "sentence1", "sentence2", "label"), [("0", "the cat", "not", "1")])
    with pytest.raises(UsageError, match=r"no label of CoLA, 'sentence1': .*dev.tsv line 1, column 'label'"):
        run(model, tmp_path / "dev.tsv", "--task", "CoLA")  # four columns, too


@pytest.mark.parametrize("part, name", [("matched", "MNLI-m.tsv"), ("mismatched", "MNLI-mm.tsv")])
def test_submission_has_glues_names(mnli, run, tmp_path, part, name):
    tsv, _, folder = mnli
    source = tsv / f"test_{part}.tsv"
    assert run(folder, source, "--submission", tmp_path / "submission") == []
    header, *rows = (tmp_path / "submission" / name).read_text().splitlines()
    assert header == "index\tprediction"
    labels = [line.split("\t")[0] for line in run(folder, source)[1:]]
    assert rows == [f"{row}\t{label}" for row, label in enumerate(labels)]
    assert [path.name for path in (tmp_path / "submission").iterdir()] == [name]
    both = run(folder, source, "--submission", tmp_path / "s.tsv", "--output", tmp_path / "all.tsv")
    assert both == []
    assert (tmp_path / "s.tsv").read_text().splitlines() == [header, *rows]
    assert len((tmp_path / "all.tsv").read_text().splitlines()) == len(rows) + 1
    lines = run(folder, source, "--submission", tmp_path / "s.tsv", "--json")
    assert [json.loads(line)["label"] for line in lines] == labels


def test_submission_keeps_the_index_of_the_file(mnli, run, tmp_path):
    tsv, _, folder = mnli
    rows = [line.split("\t") for line in (tsv / "test_matched.tsv").read_text().splitlines()]
    for number, row in enumerate(rows[1:], 17):
        row[0] = str(number)
    write_rows(tmp_path / "test_matched.tsv", rows[0], rows[1:])
    run(folder, tmp_path / "test_matched.tsv", "--submission", tmp_path)
    found = (tmp_path / "MNLI-m.tsv").read_text().splitlines()[1:]
    assert [line.split("\t")[0] for line in found] == [str(number) for number in range(17, 29)]
    rows[2][0] = "17"
    write_rows(tmp_path / "test_matched.tsv", rows[0], rows[1:])
    with pytest.raises(UsageError, match=r"'17' is repeated: .*test_matched.tsv line 3, column 'index'"):
        run(folder, tmp_path / "test_matched.tsv", "--submission", tmp_path)


def test_submission_without_an_index_counts_from_0(mnli, run, tmp_path):
    write_rows(tmp_path / "test_matched.tsv", ("sentence1", "sentence2"), [("the cat", "a dog"), ("not", "")])
    run(mnli[2], tmp_path / "test_matched.tsv", "--submission", tmp_path)
    assert [line[0] for line in (tmp_path / "MNLI-m.tsv").read_text().splitlines()] == ["i", "0", "1"]


def test_regression_gives_numbers_and_a_submission_within_the_range(stsb, run, tmp_path, monkeypatch):
    tsv, _, folder = stsb
    own = [float(line) for line in run(folder, tsv / "test.tsv")[1:]]
    pairs = [tuple(line.split("\t")[1:]) for line in (tsv / "test.tsv").read_text().splitlines()[1:]]
    predictor = sot_fairseq.from_pretrained(folder)
    assert own == pytest.approx([predictor.predict([pair])[0].label for pair in pairs], rel=1e-4)
    numbers = [5.3, -0.1, 2.84, 0.0, 5.0, 4.99951, 1e-9, 3.14159, 100.0]
    monkeypatch.setattr(hub.SentencePredictor, "logits", lambda *args: torch.tensor(numbers)[:, None])
    header, *rows = run(folder, tsv / "test.tsv")
    assert header == "prediction"
    assert [float(row) for row in rows] == pytest.approx(numbers, rel=1e-5)
    lines = run(folder, tsv / "test.tsv", "--json")
    assert [json.loads(line) for line in lines] == [{"prediction": pytest.approx(x, rel=1e-6)} for x in numbers]
    run(folder, tsv / "test.tsv", "--submission", tmp_path)
    clipped = ["5.000", "0.000", "2.840", "0.000", "5.000", "5.000", "0.000", "3.142", "5.000"]
    found = (tmp_path / "STS-B.tsv").read_text().splitlines()
    assert found == ["index\tprediction", *(f"{row}\t{number}" for row, number in enumerate(clipped))]


@pytest.mark.parametrize("precision", ["bfloat16", "int8"])
def test_other_precisions_tell_how_far_they_are_off(model, tmp_path, capsys, precision):
    rng = random.Random(5)
    texts = [sentence(rng, longest=30) for _ in range(60)]
    write_rows(tmp_path / "own.tsv", ("text",), [(text,) for text in texts])
    words = [str(model), str(tmp_path / "own.tsv"), "--text-columns", "text", "--precision"]
    exact = sot_fairseq.from_pretrained(model)
    other = exact.in_precision(precision)
    expected, found = exact.predict(texts), other.predict(texts)
    told = {"float32": "", precision: f"{precision} against float32: {compare_predictions(found, expected)}\n"}
    for name, rows in (("float32", expected), (precision, found)):
        predict.main([*words, name])
        output = capsys.readouterr()
        assert [line.split("\t")[0] for line in output.out.splitlines()[1:]] == [row.label for row in rows]
        assert output.err == told[name]
    assert sum(a.label == b.label for a, b in zip(found, expected, strict=True)) >= 48
    assert 0 < (other.logits(texts) - exact.logits(texts)).abs().max() < 0.05
    assert other.evaluate()["accuracy"] == pytest.approx(exact.evaluate()["accuracy"], abs=10)
    assert type(exact.model.encoder.sentence_encoder.layers[0].fc1) is torch.nn.Linear


def test_int8_attention_ignores_padding(model):
    exact = sot_fairseq.from_pretrained(model)
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for parameter in exact.model.encoder.sentence_encoder.layers.parameters():
            if parameter.dim() == 2:
                parameter.normal_(0, 0.5, generator=generator)
    rng = random.Random(5)
    texts = [sentence(rng, longest=30) for _ in range(60)]
    gap = (exact.in_precision("int8").logits(texts) - exact.logits(texts)).abs()
    assert gap.max() < 0.12  # 0.23 if it attends to padding


def test_an_encoder_without_layers_is_not_quantized(model):
    predictor = sot_fairseq.from_pretrained(model)
    predictor.model.encoder.sentence_encoder.layers = torch.nn.ModuleList()
    with pytest.raises(UsageError, match="the encoder has no linear layers to quantize: --precision int8; give bf"):
        predictor.in_precision("int8")


@pytest.mark.parametrize(
    "words, message",
    [
        (["--submission", "out"], "--submission without a file: the command line"),
        (["--task", "RTE"], "--task without a file"),
        (["--text-columns", "a"], "--text-columns without a file"),
        (["--batch-size", "0"], "--batch-size 0; give 1 or more"),
        (["x.tsv", "--task", "RTE", "--text-columns", "a"], "--text-columns beside --task"),
        (["x.tsv", "--task", "RTEE"], "no such task: 'RTEE'"),
        (["x.tsv", "--submission", "out"], "not those of a GLUE task: --submission; give --task"),
        (["x.tsv", "--text-columns", "a"], r"cannot read the file .*x.tsv"),
        (["--device", "tpux"], "no such device: tpux"),
        (["--head", "mnli"], "no classification head 'mnli': .* has sentence_classification_head"),
        (["--data", "nowhere"], "no dictionary: .*nowhere/input0/dict.txt"),
    ],
)
def test_options_that_cannot_work(model, run, words, message, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UsageError, match=message):
        run(model, *words)
    assert list(tmp_path.iterdir()) == []


def test_a_model_that_gives_no_numbers(model):
    predictor = sot_fairseq.from_pretrained(model)
    with torch.no_grad():
        next(predictor.model.classification_heads.parameters()).fill_(float("nan"))
    for use in (lambda: predictor.predict(["the cat", "a dog"]), predictor.evaluate):
        with pytest.raises(UsageError, match=r"the outputs of (2 of 2|23 of 23) rows are not finite"):
            use()


def test_an_output_in_place_of_the_input(model, run, tmp_path, monkeypatch):
    write_rows(tmp_path / "dev.tsv", ("sentence",), [("the cat",)])
    (tmp_path / "link.tsv").symlink_to("dev.tsv")
    for option in ("--output", "--submission"):
        with pytest.raises(UsageError, match=f"{option} would replace the input: .*link.tsv; choose another"):
            run(model, tmp_path / "dev.tsv", "--text-columns", "sentence", option, tmp_path / "link.tsv")
    assert (tmp_path / "dev.tsv").read_text() == "sentence\nthe cat\n"
    monkeypatch.setattr(sys, "stdin", None)
    with pytest.raises(UsageError, match="standard input is closed"):
        predict.main([str(model)])


def test_submissions_that_the_server_would_refuse(model, mnli, run, tmp_path):
    tsv, _, folder = mnli
    (tmp_path / "renamed.tsv").write_bytes((tsv / "test_matched.tsv").read_bytes())
    with pytest.raises(UsageError, match=r"neither matched nor mismatched by its name: .*renamed.tsv"):
        run(folder, tmp_path / "renamed.tsv", "--submission", tmp_path / "out")
    with pytest.raises(UsageError, match=r"not a test file by its name: .*dev_matched.tsv"):
        run(folder, tsv / "dev_matched.tsv", "--submission", tmp_path / "out")
    write_rows(tmp_path / "test.tsv", ("index", "sentence"), [("0", "the cat")])
    with pytest.raises(UsageError, match="the model predicts bad, good, a submission of SST-2 has 0, 1"):
        run(model, tmp_path / "test.tsv", "--task", "SST-2", "--submission", tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_max_length_of_the_data_holds_for_new_text(corpus, tmp_path, run):
    columns = ("--text-columns", "sentence", "--label-column", "label")
    data = preprocess_folder(corpus, tmp_path / "short", *columns, "--max-length", "6")
    run_train(data, tmp_path / "run", "--max-update", "2")
    texts = ["the cat sees a dog", "the cat sees a big bird today", "the cat sees a"]
    long, longer, short = run(tmp_path / "run", text="\n".join(texts))
    assert long == longer == short


def test_as_a_program(model):
    command = [sys.executable, "-m", "sot_fairseq.predict", str(model)]
    done = subprocess.run(command, input="the cat\n\n", capture_output=True, text=True, check=True, cwd=REPOSITORY)
    assert [line.count("\t") for line in done.stdout.splitlines()] == [2, 2]
