"""Tiny files in the layouts of GLUE tasks, and a model trained on them for a few steps."""

import random

from tests.sot_fairseq.conftest import preprocess_folder, run_train, sentence, write_rows

NLI = ("entailment", "neutral", "contradiction")
LAYOUTS = {  # text columns, label column, a random label, files: name, rows
    "MNLI": (
        ("sentence1", "sentence2"),
        "gold_label",
        lambda rng: rng.choice(NLI),
        (("train", 40), ("dev_matched", 31), ("dev_mismatched", 22), ("test_matched", 12), ("test_mismatched", 13)),
    ),
    "STS-B": (
        ("sentence1", "sentence2"),
        "score",
        lambda rng: f"{rng.uniform(0, 5):.3f}",
        (("train", 30), ("dev", 29), ("test", 9)),
    ),
    "QQP": (
        ("question1", "question2"),
        "is_duplicate",
        lambda rng: rng.choice("01"),
        (("train", 30), ("dev", 37), ("test", 8)),
    ),
}


def write_task(folder, task):
    """The TSV files of a task; the test files have an index and no labels."""
    columns, label_column, label, files = LAYOUTS[task]
    rng = random.Random(task)
    for name, count in files:
        index = ("id" if task == "QQP" else "index",)
        test = name.startswith("test")
        header = (*index, *columns) if test else (*index, *columns, label_column)
        texts = [[str(row), *(sentence(rng) for _ in columns)] for row in range(count)]
        write_rows(folder / f"{name}.tsv", header, texts if test else [[*row, label(rng)] for row in texts])
    return folder


def train_task(folder, task, *words):
    """Write, preprocess and train; returns the folder of the TSV files, the data and the checkpoint's folder."""
    data = preprocess_folder(write_task(folder / "tsv", task), folder / "data", "--task", task)
    metric = {"STS-B": "pearson_and_spearman", "QQP": "acc_and_f1"}.get(task, "accuracy")
    words += ("--best-checkpoint-metric", metric, "--maximize-best-checkpoint-metric")
    if task == "STS-B":
        words += ("--regression-target", "--num-classes", "1")
    run_train(data, folder / "run", *words)
    return folder / "tsv", data, folder / "run"
