"""The nine GLUE tasks: file layouts, labels and metrics, in one table.

The layouts are those of the files that GLUE distributes. A label's position in `labels` is its class index everywhere
in the toolkit: in the fairseq label dictionary, in checkpoints and in predictions. The order is that of Hugging Face's
``glue`` data set, so a head means the same on both text sides; above all MNLI is entailment, neutral, contradiction
(fairseq's public ``roberta.large.mnli`` has the reverse). The names are the strings of the TSV files, which GLUE's
submission files want back.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from sot_base.errors import UsageError

__all__ = [
    "CLASS_METRICS",
    "GLUE_TASKS",
    "MULTI_LABEL_METRICS",
    "NUMBER_METRICS",
    "GlueTask",
    "SplitFile",
    "custom_task",
    "get_task",
]


@dataclass(frozen=True)
class SplitFile:
    """One TSV file of a task.

    Args:
        file: File name in the task's folder.
        name: The split's name on the fairseq side (``train``, ``valid``, ``valid1``, ``test``...).
        text_columns: Names of the one or two columns that hold text.
        label_column: Name of the column with the label. A test file may lack it.
        header: Names of the columns where the file has no header line; else None.
    """

    file: str
    name: str
    text_columns: tuple[str, ...]
    label_column: str
    header: tuple[str, ...] | None = None

    @property
    def is_test(self) -> bool:
        """Whether the file may be absent, and may lack labels."""
        return self.name.startswith("test")


@dataclass(frozen=True)
class GlueTask:
    """A text classification or regression task.

    Args:
        name: GLUE's name, which is also that of the folder.
        splits: The files.
        labels: Class names in class-index order; empty for regression, and for own data until they are known.
        metrics: Names of :data:`sot_text.metrics.METRICS` to report.
        main_metric: The metric that selects the best checkpoint (on the split ``valid``).
        regression: Whether the label is a number.
        label_range: Smallest and largest number allowed in regression; None for any.
        skip_malformed: Whether labelled rows with a wrong number of fields are dropped, counted, instead of refused.
        multi_label: Whether a row may have several labels, or none.
    """

    name: str
    splits: tuple[SplitFile, ...]
    labels: tuple[str, ...]
    metrics: tuple[str, ...]
    main_metric: str
    regression: bool = False
    label_range: tuple[float, float] | None = None
    skip_malformed: bool = False
    multi_label: bool = False

    @property
    def num_inputs(self) -> int:
        """1 for single sentences, 2 for pairs."""
        return len(self.splits[0].text_columns)

    @property
    def num_classes(self) -> int:
        """Width of the classifier's output: the number of labels, 1 for regression."""
        return 1 if self.regression else len(self.labels)


PAIR = ("sentence1", "sentence2")
ENTAILMENT = ("entailment", "not_entailment")
BINARY = ("0", "1")
CLASS_METRICS = ("accuracy", "f1", "mcc")  # of own data; the first one is the main one
MULTI_LABEL_METRICS = ("f1_micro", "f1_macro", "accuracy")
NUMBER_METRICS = ("pearson_and_spearman", "pearson", "spearman")


def _splits(text: Sequence[str], label: str = "label", test_text: Sequence[str] | None = None) -> tuple[SplitFile, ...]:
    files = (("train.tsv", "train"), ("dev.tsv", "valid"), ("test.tsv", "test"))
    columns = {"test": tuple(test_text or text)}
    return tuple(SplitFile(file, name, columns.get(name, tuple(text)), label) for file, name in files)


def _cola_splits() -> tuple[SplitFile, ...]:
    """Split CoLA: its train and dev files have no header line, the test file has one."""
    train, valid, test = _splits(("sentence",))
    header = ("source", "label", "mark", "sentence")
    return replace(train, header=header), replace(valid, header=header), test


def _mnli_splits() -> tuple[SplitFile, ...]:
    names = (
        ("train", "train"),
        ("dev_matched", "valid"),
        ("dev_mismatched", "valid1"),
        ("test_matched", "test"),
        ("test_mismatched", "test1"),
    )
    return tuple(SplitFile(f"{file}.tsv", name, PAIR, "gold_label") for file, name in names)


GLUE_TASKS: dict[str, GlueTask] = {
    task.name: task
    for task in (
        GlueTask("CoLA", _cola_splits(), BINARY, ("mcc", "accuracy"), "mcc"),
        GlueTask("RTE", _splits(PAIR), ENTAILMENT, ("accuracy",), "accuracy"),
        GlueTask("SST-2", _splits(("sentence",)), BINARY, ("accuracy",), "accuracy"),
        GlueTask("MNLI", _mnli_splits(), ("entailment", "neutral", "contradiction"), ("accuracy",), "accuracy"),
        GlueTask("QNLI", _splits(("question", "sentence")), ENTAILMENT, ("accuracy",), "accuracy"),
        GlueTask(
            "MRPC",
            _splits(("#1 String", "#2 String"), "Quality"),
            BINARY,
            ("accuracy", "f1", "acc_and_f1"),
            "acc_and_f1",
        ),
        GlueTask(
            "STS-B",
            _splits(PAIR, "score"),
            (),
            ("pearson", "spearman", "pearson_and_spearman"),
            "pearson_and_spearman",
            regression=True,
            label_range=(0.0, 5.0),
        ),
        GlueTask(
            "QQP",  # its train and dev files hold rows broken by line feeds, which fairseq's own recipe drops as well
            _splits(("question1", "question2"), "is_duplicate"),
            BINARY,
            ("accuracy", "f1", "acc_and_f1"),
            "acc_and_f1",
            skip_malformed=True,
        ),
        GlueTask("WNLI", _splits(PAIR), BINARY, ("accuracy",), "accuracy"),
    )
}


def get_task(name: str) -> GlueTask:
    """Look up a GLUE task: ``SST-2``, ``sst2`` and ``SST_2`` are the same.

    Raises:
        UsageError: If there is no such task; the message names those there are.
    """
    by_spelling = {_plain(task): task for task in GLUE_TASKS}
    if _plain(name) not in by_spelling:
        raise UsageError(
            f"no such task: {name!r}; use one of {', '.join(GLUE_TASKS)}, or name the columns of your data"
        )
    return GLUE_TASKS[by_spelling[_plain(name)]]


def _plain(name: str) -> str:
    return "".join(letter for letter in name.lower() if letter.isalnum())


def custom_task(
    text_columns: Sequence[str],
    label_column: str,
    labels: Sequence[str] = (),
    regression: bool = False,
    multi_label: bool = False,
) -> GlueTask:
    """Describe custom data: ``train.tsv``, ``dev.tsv`` and perhaps ``test.tsv``, each with a header line.

    Args:
        text_columns: One or two names of columns.
        label_column: The column with the label.
        labels: Class names in order; if empty, they are those of the train file, sorted.
        regression: Whether the label is a number.
        multi_label: Whether a cell is a list of labels (:func:`sot_base.names.split_names`), possibly empty.

    Raises:
        UsageError: If these do not make a task.
    """
    if not 1 <= len(text_columns) <= 2 or label_column in text_columns or len(set(text_columns)) < len(text_columns):
        columns = ", ".join([*text_columns, label_column])
        raise UsageError(f"not one or two text columns and another one for the label: {columns}; correct the names")
    if regression and labels:
        raise UsageError("labels given for a regression: " + ", ".join(labels) + "; leave them out")
    if regression and multi_label:
        raise UsageError("several labels a row in a regression: --multi-label; leave out one of the two")
    metrics = NUMBER_METRICS if regression else MULTI_LABEL_METRICS if multi_label else CLASS_METRICS
    return GlueTask(
        name="custom",
        splits=_splits(text_columns, label_column),
        labels=tuple(labels),
        metrics=metrics,
        main_metric=metrics[0],
        regression=regression,
        multi_label=multi_label,
    )
