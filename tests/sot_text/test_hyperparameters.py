"""The table of hyper-parameters against its sources."""

import json
import subprocess
import sys

import pytest

from sot_base.errors import UsageError
from sot_text import hyperparameters
from sot_text.glue import GLUE_TASKS
from sot_text.hyperparameters import TABLES, family, get_hyperparameters
from tests.support import REPOSITORY, need_shared

# fairseq's examples/roberta/README.glue.md: learning rate, batch size, updates, those of the warm-up
FAIRSEQ = {
    "MNLI": (1e-5, 32, 123873, 7432),
    "QNLI": (1e-5, 32, 33112, 1986),
    "QQP": (1e-5, 32, 113272, 28318),
    "RTE": (2e-5, 16, 2036, 122),
    "SST-2": (1e-5, 32, 20935, 1256),
    "MRPC": (1e-5, 16, 2296, 137),
    "CoLA": (1e-5, 16, 5336, 320),
    "STS-B": (2e-5, 16, 3598, 214),
}
SEED = {
    "MNLI": (2e-5, 112, 48, 0.7),
    "QNLI": (3e-5, 112, 48, 0.5),
    "RTE": (2e-5, 56, 32, 0.8),
    "CoLA": (2e-5, 96, 48, 0.5),
}


def test_the_table_has_the_recipe_of_fairseq_for_roberta():
    for task, (lr, batch_size, total, warmup) in FAIRSEQ.items():
        for encoder in ("roberta.base", "roberta.large"):
            values = get_hyperparameters(task, encoder)
            assert (values.lr, values.batch_size, values.max_epoch) == (lr, batch_size, 10)
            assert values.warmup == pytest.approx(warmup / total, abs=0.001)
            assert values.head_args == []
            assert (values.weight_decay, values.adam_beta2, values.adam_eps, values.clip_norm) == (0.1, 0.98, 1e-6, 0)


def test_the_table_has_the_values_of_the_authors_for_bert():
    for task, (lr, q, k, dropout) in SEED.items():
        for encoder in ("bert.base.cased", "spanbert.large"):
            values = get_hyperparameters(task, encoder)
            assert (values.lr, values.batch_size, values.max_epoch) == (lr, 64, 10)
            assert values.head_args == [
                *("--mgcrp-heads", "1", "--mgcrp-q", str(q), "--mgcrp-k", str(k), "--head-dropout", str(dropout))
            ]


def test_the_authors_values_are_those_of_their_readme():
    rows = {}
    text = (need_shared("seeds") / "002_e654d16788e9d5b3.md").read_text(encoding="utf-8")
    for line in text.splitlines():
        cells = [cell.strip() for cell in line.split("|")]
        if len(cells) == 5 and cells[0].startswith("`"):
            rows[cells[0].strip("`")] = cells[1:]
    for column, task in enumerate(("MNLI", "QNLI", "RTE", "CoLA")):
        names = ("--learning_rate", "self.MGCrP_q", "self.MGCrP_k", "self.MGCrP_dp")
        assert tuple(float(rows[name][column]) for name in names) == SEED[task]
        assert int(rows["--per_gpu_train_batch_size"][column]) * 4 == 64


def test_every_task_has_a_row_with_its_source_for_every_family():
    for task in GLUE_TASKS:
        for encoder in ("roberta.base", "bert.base.cased", "minilm", "gpt"):
            tuned, frozen = (get_hyperparameters(task, encoder, is_frozen) for is_frozen in (False, True))
            assert tuned.source
            assert (frozen.lr, frozen.max_epoch) == (1e-3, 4)
            assert (frozen.batch_size, frozen.head_args) == (tuned.batch_size, tuned.head_args)
            assert tuned.source in frozen.source != tuned.source
            for name in ("mgcrp_heads", "mgcrp_q"):
                assert (getattr(tuned, name) is None) == (encoder in ("roberta.base", "minilm"))


def test_an_encoder_by_path_has_the_family_of_its_tokenizer(tmp_path):
    bert, roberta = tmp_path / "my bert", tmp_path / "bert-like"
    for folder in (bert / "tokenizer", roberta):
        folder.mkdir(parents=True)
    (roberta / "model.pt").touch()
    (bert / "tokenizer" / "vocab.txt").touch()
    (bert / "model.pt").touch()
    assert [family(str(path)) for path in (bert, bert / "model.pt", roberta)] == ["bert", "bert", "roberta"]
    names = ("minilm", "spanbert.base", "bert.large.uncased", "roberta.large", "scratch:2x64")
    assert [family(name) for name in names] == ["minilm", "bert", "bert", "roberta", "roberta"]
    names = ("gpt", "hf:openai-community/openai-gpt", f"hf:{bert}", "hf:FacebookAI/roberta-base")
    assert [family(name) for name in names] == ["gpt", "gpt", "bert", "roberta"]


def test_the_command_prints_a_row(capsys):
    words = ["--task", "sst2", "--encoder", "minilm", "--freeze-backbone"]
    hyperparameters.main(words)
    assert json.loads(capsys.readouterr().out)["lr"] == 1e-3
    hyperparameters.main([*words, "--format", "lines"])
    lines = dict(line.split("\t") for line in capsys.readouterr().out.splitlines())
    assert (lines["lr"], lines["batch_size"], lines["max_epoch"]) == ("0.001", "32", "4")
    assert "mgcrp_q" not in lines


@pytest.mark.parametrize(
    "change, message",
    [
        (("\t1e-5\t", "\tfast\t"), "a cell cannot be read .*fast.*line 2; correct it"),
        (("warmup", "warm"), "columns are missing or unknown: .*line 1; correct warm, warmup"),
        (("CoLA\troberta", "CoLA\trobert"), "no row for CoLA, roberta, tuned: .*; add one"),
    ],
)
def test_mistakes_in_the_table(tmp_path, monkeypatch, change, message):
    changed = tmp_path / "hyperparameters.tsv"
    changed.write_text((TABLES / "hyperparameters.tsv").read_text().replace(*change))
    monkeypatch.setattr(hyperparameters, "TABLE", changed)
    with pytest.raises(UsageError, match=message):
        get_hyperparameters("CoLA", "roberta.base")


def test_an_installed_package_has_the_tables_and_the_yaml_files(tmp_path):
    words = [sys.executable, "setup.py", "-q", "build_py", "--build-lib", str(tmp_path)]
    subprocess.run(words, cwd=REPOSITORY, check=True, capture_output=True)
    for folder in ("sot_text/tables", "sot_fairseq/config"):
        expected = {path.name for path in (REPOSITORY / folder).iterdir()}
        assert {path.name for path in (tmp_path / folder).iterdir()} == expected != set()
