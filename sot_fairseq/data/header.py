"""``preprocess.json``: what a folder of preprocessed data says of itself."""

from __future__ import annotations

import dataclasses
import json
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sot_base.errors import UsageError

__all__ = ["HEADER", "DataHeader", "SplitCounts"]

HEADER = "preprocess.json"
FORMAT_VERSION = 1


@dataclass(frozen=True)
class SplitCounts:
    """What was read and written for one split.

    Args:
        source: Name of the file, for instance ``dev_mismatched.tsv``.
        rows: Samples.
        labelled: Whether the split has labels.
        tokens: Tokens of all inputs, each ``</s>`` included.
        longest: Positions that the longest sample takes in a model, special tokens included.
        truncated: Samples that were shortened to ``max_length``.
        skipped: Malformed rows that were dropped.
    """

    source: str
    rows: int
    labelled: bool
    tokens: int
    longest: int
    truncated: int
    skipped: int


@dataclass(frozen=True)
class DataHeader:
    """The content of ``preprocess.json``.

    Args:
        task: GLUE's name of the task, or ``custom``.
        labels: Class names in class-index order; empty for regression.
        regression: Whether the labels are numbers.
        label_range: Smallest and largest label that the task allows; None for any.
        metrics: Names of the metrics to report.
        main_metric: The one that picks the best checkpoint.
        num_inputs: 1 for single texts, 2 for pairs.
        bpe: ``gpt2``, ``sentencepiece`` or ``wordpiece``.
        lower_case: Whether text was lower-cased; None where the tokenizer knows no casing.
        vocab_file: Name of the vocabulary in the folder ``tokenizer``.
        vocab_sha256: Its checksum.
        init_token: The id to put before a sample (``--init-token``).
        separator_token: The id to put before the second text (``--separator-token``); None for none.
        max_length: Positions that samples were shortened to; None if they were not.
        splits: What was written, by split name.
        moses_detokenize: Whether texts were detokenized first; older files lack it, for they were not.
        multi_label: Whether a row may have several labels, or none; older files lack it.
        format_version: Of this file.
    """

    task: str
    labels: tuple[str, ...]
    regression: bool
    label_range: tuple[float, float] | None
    metrics: tuple[str, ...]
    main_metric: str
    num_inputs: int
    bpe: str
    lower_case: bool | None
    vocab_file: str
    vocab_sha256: str
    init_token: int
    separator_token: int | None
    max_length: int | None
    splits: dict[str, SplitCounts]
    moses_detokenize: bool = False
    multi_label: bool = False
    format_version: int = FORMAT_VERSION

    @property
    def num_classes(self) -> int:
        """What ``--num-classes`` has to be: the number of labels, 1 for regression."""
        return 1 if self.regression else len(self.labels)

    def save(self, folder: str | os.PathLike[str]) -> None:
        """Write ``preprocess.json`` into `folder`."""
        text = json.dumps(dataclasses.asdict(self), indent=2, ensure_ascii=False) + "\n"
        (Path(folder) / HEADER).write_text(text, encoding="utf-8")

    @classmethod
    def load(cls, folder: str | os.PathLike[str]) -> DataHeader:
        """Read the header of a folder of preprocessed data.

        Raises:
            UsageError: If there is none, or none that this version of the toolkit reads.
        """
        path = Path(folder) / HEADER
        advice = "make the folder with python -m sot_fairseq.preprocess"
        try:
            content: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
        except OSError as error:
            raise UsageError(f"cannot read {HEADER} ({error.strerror}): {path.absolute()}; {advice}") from None
        except ValueError as error:
            raise UsageError(f"not a JSON file ({error}): {path.absolute()}; {advice}") from None
        if not isinstance(content, dict) or content.get("format_version") != FORMAT_VERSION:
            raise UsageError(f"not of format version {FORMAT_VERSION}: {path.absolute()}; {advice}")
        try:
            content["splits"] = {name: SplitCounts(**counts) for name, counts in content["splits"].items()}
            for name in ("labels", "metrics", "label_range"):
                content[name] = None if content[name] is None else tuple(content[name])
            return cls(**content)
        except (AttributeError, KeyError, TypeError):
            raise UsageError(f"entries are missing or unknown: {path.absolute()}; {advice}") from None
