"""``preprocess.json``: what a folder of preprocessed data says of itself."""

from __future__ import annotations

import dataclasses
import json
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

from msgspec import Meta

from sot_base.errors import UsageError
from sot_base.schema import of_type
from sot_base.small_files import read_json
from sot_text.formats.dictionary import TokenId
from sot_text.metrics import METRICS

__all__ = ["HEADER", "DataHeader", "SplitCounts"]

HEADER = "preprocess.json"
FORMAT_VERSION = 1
Count = Annotated[int, Meta(ge=0, lt=2**53)]


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
    rows: Count
    labelled: bool
    tokens: Count
    longest: Count
    truncated: Count
    skipped: Count


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
    num_inputs: Literal[1, 2]
    bpe: str
    lower_case: bool | None
    vocab_file: str
    vocab_sha256: str
    init_token: TokenId
    separator_token: TokenId | None
    max_length: Annotated[int, Meta(gt=0)] | None
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
        content = read_json(path, dict[str, Any], advice)
        if content.get("format_version") != FORMAT_VERSION:
            raise UsageError(f"not of format version {FORMAT_VERSION}: {path.absolute()}; {advice}")
        header = of_type(content, cls, str(path.absolute()), advice)
        unknown = {*header.metrics, header.main_metric} - set(METRICS)
        if unknown:
            shown = ", ".join(name[:40] for name in sorted(unknown)[:5])
            raise UsageError(f"unknown metrics {shown}: {path.absolute()}; {advice}")
        return header
