"""`python -m sot_fairseq.visualize`: words on a page, in a picture, in the terminal; its mistakes."""

import io
import re
import shlex
import sys

import numpy as np
import pytest
import torch

import sot_fairseq
from sot_base.errors import UsageError
from sot_fairseq import visualize
from sot_fairseq.prediction.text_model import FairseqTextModel
from sot_text.command_options import visualize_parser
from sot_text.visualization.explain import explain
from sot_visual.attribution import METHODS
from tests.sot_fairseq.conftest import run_train, write_rows
from tests.support import REPOSITORY


@pytest.fixture(scope="module")
def folder(data, tmp_path_factory):
    folder = tmp_path_factory.mktemp("single")
    run_train(data, folder, "--max-epoch", "2")
    return folder


@pytest.fixture(scope="module")
def pairs(pair_data, tmp_path_factory):
    folder = tmp_path_factory.mktemp("pairs")
    run_train(pair_data, folder, "--freeze-backbone")
    return folder


@pytest.fixture
def run(monkeypatch, capsys):
    """Run the command with a text as standard input; returns what it printed."""

    def run(*words, text=""):
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(text.encode())))
        capsys.readouterr()
        visualize.main([str(word) for word in words])
        return capsys.readouterr().out

    return run


TEXTS = "the cats, not well\n\ncat\n<script> the big dog\nדג the cat\n"


@pytest.mark.parametrize("method", METHODS)
def test_every_method_colours_every_line_of_standard_input(folder, run, method):
    output = run(folder, "--method", method, text=TEXTS)
    assert output.count("ClassT + WordT") == output.count("WordT  ") == 5
    assert output.count("(empty)") == 3
    assert "mcats\x1b[0m" in output  # two sub-words


def test_predictions_are_those_of_predict(folder):
    predictor = sot_fairseq.from_pretrained(folder)
    rows = [(text,) for text in TEXTS.splitlines()]
    expected = predictor.predict(TEXTS.splitlines())
    items = list(explain(FairseqTextModel(predictor), rows, [None] * 5, "contributions", batch_size=2))
    assert [item.prediction for item in items] == [prediction.label for prediction in expected]
    for item, prediction in zip(items, expected, strict=True):
        assert item.probability == pytest.approx(prediction.probabilities[item.explained], abs=1e-5)
        assert item.without_words in ("good", "bad")
        assert set(item.scores) == {"cls", "word", "both"}


def test_words_of_pairs_that_are_cut_lie_where_they_say(pairs):
    predictor = sot_fairseq.from_pretrained(pairs)
    model = FairseqTextModel(predictor)
    row = ("the cats  sees " * 12, "a dog likes " * 9)
    (item,) = model.encode([row])
    assert len(item.spans) == len(item.fields["tokens"]) == predictor.task.max_positions()
    vocabulary = predictor.task.source_dictionary
    for span, number in zip(item.spans, item.fields["tokens"], strict=True):
        if span is not None:
            text, start, end = span
            assert vocabulary[number].removeprefix("##") == item.texts[text][start:end]
    assert sum(span is None for span in item.spans) == 3
    assert torch.equal(model.logits([item], 1), predictor.logits([row]))


def test_a_frozen_encoder_has_gradients_all_the_same(pairs, run):
    output = run(pairs, "--method", "integrated_gradients", text="the cat\ta big dog\n")
    assert output.count(" | ") == 3
    assert len(set(output.split("48;2;"))) > 3


def test_a_file_with_labels_gives_a_page_and_a_picture(folder, corpus, run, tmp_path):
    outputs = (tmp_path / "a.html", tmp_path / "a.png")
    columns = ("--text-columns", "sentence", "--label-column", "label")
    run(folder, corpus / "dev.tsv", *columns, "--limit", "7", "--rows", "word", "--class", "BAD", "--output", *outputs)
    page = outputs[0].read_text()
    assert page.count("<tr data-search") == 7
    assert page.count('class="right"') + page.count('class="wrong"') == 7
    assert "WordT</span>" in page
    assert "ClassT</span>" not in page
    assert outputs[1].read_bytes().startswith(b"\x89PNG")


def test_the_check_prints_a_table_and_draws_curves(folder, corpus, run, tmp_path):
    columns = ("--text-columns", "sentence", "--limit", "6", "--output", tmp_path / "c.png")
    output = run(folder, corpus / "dev.tsv", *columns, "--check", "--check-methods", "contributions", "relevance")
    rows = [line.split("|")[1].strip() for line in output.splitlines() if line.startswith("|")]
    assert [row for row in rows if row.strip("-")] == ["method", "contributions", "relevance", "random"]
    assert "mean ± standard error" in output
    assert (tmp_path / "c.png").read_bytes().startswith(b"\x89PNG")


def test_the_spectrum_is_drawn_and_svpn_flattens_it(folder, run, tmp_path, monkeypatch):
    drawn = []
    monkeypatch.setattr("sot_text.visualization.command.draw_spectrum", lambda *args: drawn.append(args))
    run(folder, "--spectrum", tmp_path / "spectrum.png", text="the cat sees a big dog\na bird likes the dog well\n")
    before, after, path, title = drawn[0]
    assert before.shape == after.shape == (2 * 2, 3)
    np.testing.assert_allclose(after[:, 1] / after[:, 0], before[:, 1] / before[:, 0], rtol=1e-4)
    assert (str(path), title) == (str(tmp_path / "spectrum.png"), "standard input, 2 texts")


@pytest.mark.parametrize(
    "words, text, message",
    [
        (("--class", "great"), "a cat\n", "no such class: --class great; give one of"),
        (("--output", "a.txt"), "", "unknown format: --output a.txt"),
        (("--check", "--output", "a.html"), "", "--check draws curves, not a page"),
        (("--check",), "\n", "nothing to check"),
        ((), "a cat\ta dog\n", "2 field.s. where 1 are expected"),
        (("--rows", "cls"), None, "text columns are unknown"),
    ],
)
def test_mistakes(folder, run, words, text, message, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    file = ()
    if text is None:
        write_rows(tmp_path / "x.tsv", ("sentence",), [("a cat",)])
        file, text = (tmp_path / "x.tsv",), ""
    with pytest.raises(UsageError, match=message):
        run(folder, *file, *words, text=text)
    assert sorted(path.name for path in tmp_path.iterdir()) == (["x.tsv"] if file else [])


def test_a_head_of_fairseqs_own_has_one_row(data, run, tmp_path):
    run_train(data, tmp_path, "--head-fusion", "cls")
    assert run(tmp_path, "--method", "relevance", text="the cat\n").count("WordT") == 1
    with pytest.raises(UsageError, match="no second-order head"):
        run(tmp_path, text="the cat\n")
    with pytest.raises(UsageError, match="no part cls"):
        run(tmp_path, "--method", "relevance", "--rows", "cls", text="the cat\n")


def test_the_documentation_has_every_option_and_its_commands_are_right():
    text = (REPOSITORY / "docs" / "visualization.md").read_text(encoding="utf-8")
    parser = visualize_parser("visualize", "")
    for action in parser._actions[1:]:
        assert not action.option_strings or action.option_strings[0] in text
    commands = re.findall(r"^(?:echo .* \| )?python -m sot_\w+\.visualize (.*)$", text, flags=re.MULTILINE)
    assert len(commands) == 5
    for words in commands:
        parser.parse_args(shlex.split(words))
