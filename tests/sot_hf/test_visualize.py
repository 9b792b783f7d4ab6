"""`python -m sot_hf.visualize`: encoders and decoders, and where their tokens come from."""

import io
import sys

import pytest
import torch

from sot_base.errors import UsageError
from sot_hf import visualize
from sot_hf.text_model import HuggingFaceTextModel
from sot_text.visualization.explain import explain
from sot_visual.attribution import METHODS, attribute
from tests.sot_hf.models import randomize, tiny_model, tokenizer

KINDS = ("bert", "roberta", "gpt2", "distilbert")
ROWS = [("the cats, not well",), ("",), ("dog",), ("unknown זה dogs",)]


def text_model(kind, max_length=40, **config):
    return HuggingFaceTextModel(randomize(tiny_model(kind, **config)), tokenizer(), max_length)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("method", [name for name in METHODS if name != "random"])
def test_scores_of_a_padded_batch_are_those_of_each_text_alone(kind, method):
    model = text_model(kind)
    together = list(explain(model, ROWS, [None] * 4, method))
    for row, item in zip(ROWS, together, strict=True):
        (alone,) = explain(model, [row], [None], method)
        assert alone.prediction == item.prediction
        for part in ("cls", "word", "both"):
            torch.testing.assert_close(
                torch.tensor(alone.scores[part]), torch.tensor(item.scores[part]), rtol=1e-3, atol=1e-4
            )
    words = [item.texts[0][word.start : word.end] for item in together for word in item.words]
    assert words == ["the", "cats", ",", "not", "well", "dog", "unknown", "זה", "dogs"]


def test_a_decoders_last_token_gets_its_own_place_back():
    model = text_model("gpt2")
    inputs = model.collate(model.encode([("the cat sees a dog",), ("cat",)]))
    view, target = model.view(), torch.zeros(2, dtype=torch.long)
    cls, word = model.module.classifier.contributions(*view.tokens(*inputs))
    scores = attribute(view, inputs, target, "contributions")
    bias = model.module.classifier.word_fc.bias[0]
    assert scores.shape == inputs[0].shape
    torch.testing.assert_close(scores.sum(dim=1), (cls + word)[:, 0].detach() - bias.detach(), rtol=1e-3, atol=1e-4)
    assert not scores[1, 3:].any()


def test_backbones_with_an_attention_of_their_own_say_so_and_keep_the_other_methods():
    model = text_model("deberta-v2")
    with pytest.raises(UsageError, match="no self-attention"):
        list(explain(model, ROWS[:1], [None], "relevance"))
    assert len(list(explain(model, ROWS, [None] * 4, "contributions"))) == 4


@pytest.fixture
def run(monkeypatch, capsys):
    def run(*words, text=""):
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(text.encode())))
        capsys.readouterr()
        visualize.main([str(word) for word in words])
        return capsys.readouterr().out

    return run


def save(folder, **config):
    randomize(tiny_model("bert", **config)).save_pretrained(folder)
    tokenizer().save_pretrained(folder)
    return folder


def test_a_frozen_saved_model_from_the_command_line(run, tmp_path):
    folder = save(tmp_path / "run", freeze_backbone=True, id2label={0: "no", 1: "maybe", 2: "yes"})
    page = tmp_path / "page.html"
    run(folder, "--method", "gradient_x_input", "--output", page, text="the cat\ta <b>dog</b>\n")
    assert "&lt;" in page.read_text()
    assert "explained class" in page.read_text()
    output = run(folder, "--class", "yes", "--max-seq-length", "8", text="the cat sees the dog today\tthe dog\n")
    assert "; yes: " in output
    assert output.count("\n") == 4


def test_a_regression_shows_numbers(run, tmp_path):
    folder = save(tmp_path / "run", num_labels=1)
    output = run(folder, text="the cat\n")
    assert float(output.splitlines()[0].split(";")[0])
    with pytest.raises(UsageError, match="predicts a number"):
        run(folder, "--check", text="the cat\n")


def test_the_format_of_a_figure_is_checked_first(run, tmp_path):
    with pytest.raises(UsageError, match=r"unknown format: --spectrum s.txt; give .png, .svg or .pdf"):
        run(tmp_path / "absent", "--spectrum", "s.txt", text="the cat\n")


def test_a_backbone_without_a_head_is_refused(run, bert_folder):
    with pytest.raises(UsageError, match="no trained head"):
        run(bert_folder, text="the cat\n")


@pytest.mark.parametrize("words", [["--check"], ["--spectrum", "s.png"], ["--output", "page.html"]])
def test_no_texts_make_no_file(run, tmp_path, monkeypatch, words):
    monkeypatch.chdir(tmp_path)
    folder = save(tmp_path / "run")
    with pytest.raises(UsageError, match="no texts: standard input; pipe lines in, or name a file"):
        run(folder, *words)
    assert [path.name for path in tmp_path.iterdir()] == ["run"]
    assert run(folder) == ""
