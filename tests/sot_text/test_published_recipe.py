"""Every text recipe against what was published, option by option; each deviation is listed with its reason.

Published are: what the README of SoT's text repository states, the defaults of transformers' ``run_glue`` script of
that time, which that repository uses, fairseq's recipe for RoBERTa, and section 4.1 of GPT's paper.
"""

import dataclasses

import pytest

from sot_core.options import HEAD_OPTIONS
from sot_hf.arguments import parse_arguments
from sot_text.glue import GLUE_TASKS
from sot_text.hyperparameters import TABLE, get_hyperparameters
from tests.support import need_shared

# run_glue of transformers 2: its options and their defaults
RUN_GLUE = {
    "learning_rate": 5e-5,
    "weight_decay": 0.0,
    "adam_beta1": 0.9,
    "adam_beta2": 0.999,
    "adam_epsilon": 1e-8,
    "max_grad_norm": 1.0,
    "warmup_steps": 0,
    "lr_scheduler_type": "linear",
    "num_train_epochs": 3.0,
    "max_steps": -1,
    "per_device_train_batch_size": 8,
    "per_device_eval_batch_size": 8,
    "gradient_accumulation_steps": 1,
    "seed": 42,
    "fp16": False,
    "train_sampling_strategy": "random",
    "save_strategy": "steps",
}
DEVIATIONS = {  # of sot_hf.run_glue's defaults: the value here, and why
    "train_sampling_strategy": ("group_by_length", "the same rows an epoch with less padding; random is an option"),
    "save_strategy": ("epoch", "the best epoch's model is kept, which needs an evaluation and a checkpoint each epoch"),
}

# SoT's text README, table of 4 GPUs: learning rate, rows of a GPU, epochs; then q, k and dropout of MGCrP
SEED = {
    "MNLI": (2e-5, 16, 10, 112, 48, 0.7),
    "QNLI": (3e-5, 16, 10, 112, 48, 0.5),
    "RTE": (2e-5, 16, 10, 56, 32, 0.8),
    "CoLA": (2e-5, 16, 10, 96, 48, 0.5),
}
PUBLISHED_BERT = {"warmup": 0.0, "weight_decay": 0.0, "adam_beta2": 0.999, "adam_eps": 1e-8, "clip_norm": 1.0}
CHOSEN_BERT = {"mgcrp_heads": (1, "the README states rows and columns of one matrix, and no number of heads")}
PUBLISHED_ROBERTA = {"max_epoch": 10, "weight_decay": 0.1, "adam_beta2": 0.98, "adam_eps": 1e-6, "clip_norm": 0.0}
PUBLISHED_GPT = {
    "lr": 6.25e-5,
    "batch_size": 32,
    "max_epoch": 3,
    "warmup": 0.002,
    "weight_decay": 0.01,
    "max_length": 512,
}
CHOSEN_GPT = {  # not in the paper
    "adam_beta2": (0.999, "as run_glue's default"),
    "adam_eps": (1e-8, "as run_glue's default"),
    "clip_norm": (1.0, "as run_glue's default"),
    "mgcrp_heads": (1, "as for BERT-base"),
}


@pytest.fixture
def options(tmp_path):
    """The options of the published command, as far as it goes, and nothing else."""
    words = (
        f"--model_name_or_path m --task_name RTE --do_train --do_eval --data_dir d --output_dir {tmp_path} --use_cpu"
    )
    return parse_arguments(words.split())


def test_the_defaults_of_run_glue_are_the_published_ones(options):
    ours = {name: getattr(options.training, name) for name in RUN_GLUE}
    ours = {name: getattr(value, "value", value) for name, value in ours.items()}
    differing = {name: value for name, value in ours.items() if value != RUN_GLUE[name]}
    assert differing == {name: value for name, (value, _) in DEVIATIONS.items()}
    assert all(reason for _, reason in DEVIATIONS.values())


@pytest.mark.parametrize("encoder", ["bert.base.cased", "bert.large.cased", "spanbert.base", "spanbert.large"])
@pytest.mark.parametrize("task", GLUE_TASKS)
def test_bert_rows_are_sots_text_recipe(task, encoder):
    values = dataclasses.asdict(get_hyperparameters(task, encoder))
    chosen = {name: value for name, (value, _) in CHOSEN_BERT.items()}
    assert values.items() >= (PUBLISHED_BERT | chosen | {"max_length": 128, "max_epoch": 10, "batch_size": 64}).items()
    if task in SEED:
        lr, rows, epochs, q, k, dropout = SEED[task]
        published = {"lr": lr, "batch_size": 4 * rows, "max_epoch": epochs, "head_dropout": dropout}
        assert values.items() >= (published | {"mgcrp_q": q, "mgcrp_k": k}).items()
        assert values["source"].startswith("SoT's text README, for BERT-base: ")
        assert "run_glue's defaults" in values["source"]
    else:
        assert values["source"].startswith("chosen here: ")
    assert "BERT-large and SpanBERT: all taken from BERT-base" in values["source"]


@pytest.mark.parametrize("task", GLUE_TASKS)
def test_roberta_rows_are_fairseqs_recipe_and_say_that_the_head_is_ours(task):
    values = dataclasses.asdict(get_hyperparameters(task, "roberta.base"))
    assert values.items() >= PUBLISHED_ROBERTA.items()
    assert [values[option.name] for option in HEAD_OPTIONS if option.name in values] == [None] * 4
    assert "fairseq's recipe" in values["source"]
    assert "head: the toolkit's defaults" in values["source"]


@pytest.mark.parametrize("task", GLUE_TASKS)
def test_gpt_rows_are_those_of_gpts_paper(task):
    values = dataclasses.asdict(get_hyperparameters(task, "gpt"))
    bert = dataclasses.asdict(get_hyperparameters(task, "bert.base.cased"))
    head = {name: bert[name] for name in ("mgcrp_q", "mgcrp_k", "head_dropout")}
    chosen = {name: value for name, (value, _) in CHOSEN_GPT.items()}
    assert values == PUBLISHED_GPT | chosen | head | {"source": values["source"]}
    assert "Adam, clipping: chosen here" in values["source"]
    assert "head: chosen here" in values["source"]


def test_no_row_is_left_out():
    families = {line.split("\t")[1] for line in TABLE.read_text(encoding="utf-8").splitlines()[1:]}
    assert families == {"roberta", "bert", "gpt", "minilm", "any"}  # minilm and frozen rows: chosen here, as they say
    for encoder in ("minilm", "bert"):
        values = get_hyperparameters("RTE", encoder, frozen=encoder == "bert")
        assert values.source.startswith("chosen here: ")


def test_the_copies_agree_with_the_published_files():
    text = (need_shared("seeds") / "002_e654d16788e9d5b3.md").read_text(encoding="utf-8")
    cells = [[cell.strip(" `") for cell in line.split("|")] for line in text.splitlines() if line.count("|") == 4]
    rows = {
        row[0]: [float(cell) for cell in row[1:]] for row in cells if row[0].startswith(("--l", "--p", "--n", "self."))
    }
    columns = list(zip(*rows.values(), strict=True))
    assert dict(zip(("MNLI", "QNLI", "RTE", "CoLA"), columns, strict=True)) == SEED
