"""A run of glue_scripts on a Hugging Face model: its commands, and its table."""

import json
import shlex

import pytest

from sot_base.errors import UsageError
from sot_hf import prepare, results
from sot_hf.arguments import parse_arguments
from sot_text.results_table import table
from tests.glue_files import write_glue
from tests.sot_hf.models import WORDS


@pytest.fixture
def glue(tmp_path):
    return write_glue(tmp_path / "glue", WORDS, ("RTE", "MNLI"))


@pytest.fixture
def words(glue, tmp_path, monkeypatch):
    """The command line but for the encoder; the model's configuration is not looked for."""
    asked = []
    monkeypatch.setattr(prepare, "load_config", asked.append)
    monkeypatch.setenv("SOT_OFFLINE", "1")
    return ["--data-dir", str(glue), "--output-dir", str(tmp_path / "out")]


def command(folder, head):
    words = shlex.split((folder / head / "seed-3" / "command.txt").read_text())
    assert words[:3] == ["python", "-m", "sot_hf.run_glue"]
    return parse_arguments(words[3:])


def test_the_rows_of_gpt(words, tmp_path, capsys):
    options = [
        "--task",
        "MNLI",
        "--encoder",
        "gpt",
        "--seeds",
        "3",
        "--heads",
        "mgcrp",
        "gap",
        "cls",
        "--max-epoch",
        "2",
    ]
    prepare.main([*words, *options, "--", "--use_cpu"])
    assert "GPT's paper" in capsys.readouterr().out
    out = tmp_path / "out"
    ours, gap, baseline = (command(out, head) for head in ("mgcrp", "gap", "cls"))
    assert ours.glue.model_name_or_path == "openai-community/openai-gpt"
    assert (ours.glue.task_name, ours.glue.max_seq_length, ours.glue.force_lower_case) == ("MNLI", 512, False)
    training = ours.training
    assert (training.learning_rate, training.per_device_train_batch_size, training.num_train_epochs) == (6.25e-5, 32, 2)
    assert (training.weight_decay, training.max_grad_norm, training.seed, training.use_cpu) == (0.01, 1.0, 3, True)
    assert training.get_warmup_steps(1000) == 2
    assert (ours.head["num_heads"], ours.head["q_dim"], ours.head["k_dim"], ours.head["drop_rate"]) == (1, 112, 48, 0.7)
    assert gap.head == {"fusion": "sum_fc", "pooling": "gap"}
    assert baseline.head == {"fusion": "cls"}
    assert json.loads((out / "run.json").read_text())["encoder"] == "gpt"


def test_another_model_and_lower_case(words, tmp_path):
    options = ["--task", "RTE", "--encoder", "hf:FacebookAI/roberta-base", "--seeds", "3", "--force-lower-case"]
    prepare.main([*words, *options])
    ours = command(tmp_path / "out", "mgcrp")
    assert (ours.glue.model_name_or_path, ours.glue.force_lower_case) == ("FacebookAI/roberta-base", True)
    assert (ours.training.weight_decay, ours.head["q_dim"]) == (0.1, 56)  # RoBERTa's recipe, the head of run_glue


def test_mistakes(words, tmp_path):
    task = ["--task", "RTE", "--encoder", "gpt"]
    with pytest.raises(UsageError, match="no such encoder: nowhere; give gpt, or hf: and"):
        prepare.main([*words, "--task", "RTE", "--encoder", "nowhere"])
    with pytest.raises(UsageError, match="--head_fusion would apply to every training"):
        prepare.main([*words, *task, "--", "--head-fusion", "words"])
    with pytest.raises(UsageError, match=r"not downloaded, SOT_OFFLINE is set: .*/CoLA.zip; unset it, or put"):
        prepare.main([*words, "--download", "RTE", "CoLA", "--encoder", "gpt"])
    assert not (tmp_path / "out").exists()
    prepare.main([*words, *task])
    (tmp_path / "out" / "cls" / "seed-1" / "checkpoint-9").mkdir()
    with pytest.raises(UsageError, match=r"the folder holds a run with other settings .lr 6.25e-05, now 0.1.: "):
        prepare.main([*words, *task, "--lr", "0.1"])


def test_results_stand_beside_the_reported_ones(words, tmp_path):
    prepare.main([*words, "--task", "MNLI", "--encoder", "gpt", "--seeds", "1", "2"])
    out = tmp_path / "out"
    with pytest.raises(UsageError, match=r"no <head>/seed-<n>/eval_results.json"):
        results.collect(out)
    for head, value in (("mgcrp", 0.8), ("cls", 0.7)):
        for seed in (1, 2):
            content = {"eval_accuracy": value, "eval_mm_accuracy": value / 2, "eval_runtime": 3, "epoch": 3.0}
            (out / head / f"seed-{seed}" / "eval_results.json").write_text(json.dumps(content))
    found = results.collect(out)
    assert found["heads"]["mgcrp"]["summary"]["dev_mismatched"]["accuracy"]["mean"] == pytest.approx(40)
    rows = [[cell.strip() for cell in line.split("|")] for line in table({"mnli": found}).splitlines()[2:6]]
    assert [(row[3], row[5], row[7], row[10]) for row in rows] == [
        ("dev_matched", "cls", "70.00", "82.10"),
        ("dev_mismatched", "cls", "35.00", "-"),
        ("dev_matched", "mgcrp", "80.00", "82.41"),
        ("dev_mismatched", "mgcrp", "40.00", "-"),
    ]
    (out / "cls" / "seed-1" / "eval_results.json").write_text("{}")
    with pytest.raises(UsageError, match=r"no eval_accuracy: .*eval_results.json; run the script again"):
        results.collect(out)
