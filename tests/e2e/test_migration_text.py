"""The text part of docs/migration.md, docs/huggingface.md and docs/glue.md against the published READMEs."""

import json
import re
import shlex

import pytest

from sot_fairseq import download
from sot_fairseq.pretrained.encoder_table import ENCODERS
from sot_hf import SoTForSequenceClassification, run_glue
from sot_hf.arguments import parse_arguments
from sot_hf.prepare import ENCODERS as HF_ENCODERS
from sot_text.glue import GLUE_TASKS
from sot_text.hyperparameters import get_hyperparameters
from sot_text.results_table import read_reported
from tests.sot_hf.conftest import bert_folder, rte  # noqa: F401  # fixtures
from tests.support import REPOSITORY, need_shared

pytestmark = pytest.mark.e2e
MIGRATION, HUGGING_FACE, GLUE = (
    (REPOSITORY / "docs" / f"{name}.md").read_text(encoding="utf-8") for name in ("migration", "huggingface", "glue")
)
TEXT = MIGRATION.split("\n## SoT: text\n")[1]
# the published command, from the README of the text repository
PUBLISHED = """python run_glue.py --model_type bert --model_name_or_path bert-base-cased --task_name $TASK_NAME
--do_lower_case --do_train --do_eval --data_dir $GLUE_DIR/$TASK_NAME --max_seq_length 128 --per_gpu_train_batch_size 32
--learning_rate 2e-5 --num_train_epochs 10 --output_dir OUTPUT/ --eval_all_checkpoints"""
DOWNLOAD = "python download_glue_data.py --data_dir glue_data --tasks all"


def commands(text, program):
    """The commands of a document's blocks that run a program, split."""
    blocks = re.findall(r"^```(?:bash|shell)\n(.*?)^```", text, flags=re.MULTILINE | re.DOTALL)
    lines = [line for block in blocks for line in block.replace("\\\n", " ").splitlines()]
    return [shlex.split(line) for line in lines if program in line and not line.startswith("#")]


def table(text, first):
    """A table of a document by its first column."""
    lines = [[cell.strip(" `") for cell in line.strip("|").split("|")] for line in text.splitlines() if line[:1] == "|"]
    start = next(number for number, cells in enumerate(lines) if cells[0] == first)
    rows = []
    for cells in lines[start + 2 :]:
        if len(cells) != len(lines[start]):
            break
        rows.append(dict(zip(lines[start], cells, strict=True)))
    return rows


def test_the_published_commands_are_those_of_the_readme():
    text = (need_shared("seeds") / "002_e654d16788e9d5b3.md").read_text(encoding="utf-8")
    assert commands(text, "run_glue.py") == [shlex.split(PUBLISHED)]
    assert commands(text, "download_glue_data.py") == [DOWNLOAD.split()]


def test_the_documents_have_the_published_command():
    options = shlex.split(PUBLISHED)[2:]
    ours = ["python", "-m", "sot_hf.run_glue", *options]
    assert commands(TEXT, "run_glue") == [ours]
    on_four = ["16" if word == "32" else word for word in options]
    torchrun = ["torchrun", "--nproc_per_node", "4", "-m", "sot_hf.run_glue", *on_four]
    assert commands(HUGGING_FACE, "-m sot_hf.run_glue") == [ours, torchrun]


def test_the_published_command_trains_as_published(bert_folder, rte, tmp_path):  # noqa: F811
    """As it stands, paths aside, on a tiny BERT and 24 rows."""
    places = {"bert-base-cased": bert_folder, "$TASK_NAME": "RTE", "$GLUE_DIR/$TASK_NAME": rte, "OUTPUT/": tmp_path}
    words = [str(places.get(word, word)) for word in shlex.split(PUBLISHED)[2:]]
    words[words.index("128")] = "40"  # what the tiny BERT takes
    training = parse_arguments([*words, "--use_cpu"]).training
    assert (training.learning_rate, training.per_device_train_batch_size, training.num_train_epochs) == (2e-5, 32, 10)
    assert (training.weight_decay, training.adam_epsilon, training.max_grad_norm, training.warmup_steps) == (
        0,
        1e-8,
        1,
        0,
    )
    run_glue.main([*words, "--use_cpu", "--disable_tqdm", "True"])
    epochs = [entry["epoch"] for entry in json.loads((tmp_path / "eval_results_all.json").read_text()).values()]
    assert sorted(epochs) == list(range(1, 11))
    head = SoTForSequenceClassification.from_pretrained(tmp_path).config.head
    assert (head["q_dim"], head["k_dim"], head["drop_rate"]) == (56, 32, 0.8)


def test_the_download_is_a_command(monkeypatch, tmp_path, capsys):
    got = []
    monkeypatch.setattr(download, "download_glue", lambda name, folder, _: got.append((name, str(folder))) or tmp_path)
    (words,) = commands(TEXT, "sot_fairseq.download")
    assert commands(TEXT, "download_glue_data.py") == [DOWNLOAD.split()]
    download.main(words[3:])
    assert got == [(name, "glue_data") for name in GLUE_TASKS]


def test_the_table_of_four_gpus_is_what_is_trained():
    rows = table(TEXT, "task")
    assert [row["task"] for row in rows] == ["MNLI", "QNLI", "RTE", "CoLA"]
    for row in rows:
        values = get_hyperparameters(row["task"], "bert.base.cased")
        assert float(row["--learning_rate"]) == values.lr
        assert 4 * int(row["--per_gpu_train_batch_size"]) == values.batch_size
        assert int(row["--num_train_epochs"]) == values.max_epoch
        head = (values.mgcrp_q, values.mgcrp_k, values.head_dropout)
        assert (int(row["self.MGCrP_q"]), int(row["self.MGCrP_k"]), float(row["self.MGCrP_dp"])) == head


def test_the_rows_of_the_sot_table_have_their_encoder_and_what_is_reported():
    reported, found = read_reported(), {}
    for row in table(GLUE, "row"):
        assert row["ENCODER"] in {*ENCODERS, *HF_ENCODERS}
        assert row["row"].endswith(" + ours") is (row["HEAD"] == "mgcrp")
        for task in ("CoLA", "RTE", "MNLI", "QNLI"):
            split, metric = "dev_matched" if task == "MNLI" else "dev", GLUE_TASKS[task].main_metric
            found[row["ENCODER"], task, split, metric, row["HEAD"]] = float(row[task])
    assert found == reported
