"""Write the folder of binary data that fairseq's ``sentence_prediction`` task reads.

The layout is described in :mod:`sot_fairseq.preprocess`, the command line.
"""

from __future__ import annotations

import contextlib
import logging
import os
from dataclasses import replace
from pathlib import Path

import numpy as np

from sot_base.atomic import atomic_folder
from sot_base.download.file import sha256_of
from sot_base.errors import UsageError
from sot_fairseq.data.header import HEADER, DataHeader, SplitCounts
from sot_fairseq.data.indexed import IndexedWriter
from sot_fairseq.data.truncation import longest_first, shorten
from sot_fairseq.tokenizers.tokenization import TextEncoder
from sot_text.formats.dictionary import BOS, EOS, SPECIALS, write_dictionary
from sot_text.glue import GlueTask, SplitFile
from sot_text.labels import class_indices, class_sets, labels_of, regression_targets
from sot_text.splits import find_data, read_split_file
from sot_text.tsv import TsvTable

__all__ = ["write_data"]

Encoded = list[tuple[np.ndarray, np.ndarray]]  # for each input the ids of all texts, and the number of ids of each text

logger = logging.getLogger(__name__)

CHUNK = 8192  # texts encoded at once


def write_data(
    task: GlueTask,
    data_dir: str | os.PathLike[str],
    output_dir: str | os.PathLike[str],
    encoder: TextEncoder,
    max_length: int | None = None,
) -> DataHeader:
    """Write the fairseq data of a task.

    Args:
        task: Files, columns and labels; without labels they are taken from the train file.
        data_dir: The folder with the TSV files, or the one that has it under the task's name.
        output_dir: The folder to write; an earlier one of this command is replaced.
        encoder: Turns text into ids.
        max_length: Positions a sample may take in a model, special tokens included; longer ones are shortened.

    Returns:
        What was written.

    Raises:
        UsageError: If a file is missing or malformed, or an option cannot be. Nothing is written then.
    """
    output = Path(output_dir).resolve()
    data = find_data(task, Path(data_dir), "--data-dir", task.splits[:1])
    _check_output(output, data)
    specials = 2 if task.num_inputs == 1 else 2 + encoder.subwords.separators
    if max_length is not None and max_length < specials + task.num_inputs:
        least = specials + task.num_inputs
        raise UsageError(
            f"max length {max_length} leaves no word beside {specials} special tokens; give {least} or more"
        )
    with atomic_folder(output) as folder:
        splits = {}
        for split in task.splits:
            if split.is_test and not (data / split.file).exists():
                continue
            table = read_split_file(task, split, data)
            if not (task.labels or task.regression):
                task = replace(task, labels=labels_of(table, split.label_column, task.multi_label))
            labelled = _write_labels(task, split, table, folder / "label")
            texts = [table.columns[column] for column in split.text_columns]
            tokens, longest, truncated = _write_inputs(texts, encoder, folder, split.name, specials, max_length)
            splits[split.name] = SplitCounts(
                split.file, len(table), labelled, tokens, longest, truncated, len(table.skipped)
            )
            if truncated:
                logger.warning("%s: %d of %d samples shortened to %s", table.path, truncated, len(table), max_length)
        header = _save_tokenizer(task, encoder, folder, max_length, splits)
        header.save(folder)
    return header


def _check_output(output: Path, data: Path) -> None:
    """Refuse to replace anything but an older output."""
    if output in (data.resolve(), *data.resolve().parents):
        raise UsageError(f"the output would replace its own input: {output}; choose another --output-dir")
    if output.exists() and not (output.is_dir() and ((output / HEADER).is_file() or not any(output.iterdir()))):
        raise UsageError(f"not an older output of this command: {output}; choose another --output-dir or remove it")


def _write_labels(task: GlueTask, split: SplitFile, table: TsvTable, folder: Path) -> bool:
    """Write the labels of a split if it has some."""
    column = split.label_column
    if column not in table.columns:
        return False
    folder.mkdir(exist_ok=True)
    if task.regression:
        targets = regression_targets(table, column, task.label_range)
        text = "".join(f"{target!r}\n" for target in targets.tolist())
        (folder / f"{split.name}.label").write_text(text, encoding="utf-8")
        return True
    if task.multi_label:
        rows, classes = np.nonzero(class_sets(table, column, task.labels))
    else:
        rows, classes = np.arange(len(table)), class_indices(table, column, task.labels)
    if split.name == "train":
        counts = np.bincount(classes, minlength=task.num_classes).tolist()
        write_dictionary(folder / "dict.txt", zip(task.labels, counts, strict=True))
    per_row = np.bincount(rows, minlength=len(table))
    ids = np.insert(classes + len(SPECIALS), np.cumsum(per_row), EOS)  # fairseq ends labels with </s>, too
    with IndexedWriter(folder / split.name, len(SPECIALS) + task.num_classes) as writer:
        writer.write(ids, per_row + 1)
    return True


def _write_inputs(
    texts: list[list[str]], encoder: TextEncoder, folder: Path, split: str, specials: int, max_length: int | None
) -> tuple[int, int, int]:
    """Write the texts of a split; return the number of tokens, the longest sample and the number of truncated ones."""
    tokens = longest = truncated = 0
    with contextlib.ExitStack() as stack:
        writers = []
        for number in range(len(texts)):
            (folder / f"input{number}").mkdir(exist_ok=True)
            writer = IndexedWriter(folder / f"input{number}" / split, encoder.vocab_size)
            writers.append(stack.enter_context(writer))
        for start in range(0, len(texts[0]), CHUNK):
            encoded = [encoder.encode_flat(column[start : start + CHUNK]) for column in texts]
            if max_length is not None:
                encoded, shortened = _shorten(encoded, max_length - specials)
                truncated += shortened
            for writer, (ids, lengths) in zip(writers, encoded, strict=True):
                writer.write(ids, lengths)
                tokens += len(ids)
            words = np.sum([lengths - 1 for _, lengths in encoded], axis=0)
            longest = max(longest, int(words.max()) + specials)
    return tokens, longest, truncated


def _shorten(encoded: Encoded, budget: int) -> tuple[Encoded, int]:
    """Truncate samples to `budget` tokens; also return the number of truncated ones."""
    words = [lengths - 1 for _, lengths in encoded]
    first, second = words if len(words) == 2 else (words[0], np.zeros_like(words[0]))
    kept = longest_first(first, second, budget)
    shortened = [shorten(*text, keep) for text, keep in zip(encoded, kept, strict=False)]
    return shortened, int(np.count_nonzero(first + second > budget))


def _save_tokenizer(
    task: GlueTask, encoder: TextEncoder, folder: Path, max_length: int | None, splits: dict[str, SplitCounts]
) -> DataHeader:
    """Save the tokenizer, put its dictionary beside each input, and sum everything up."""
    tokenizer = folder / "tokenizer"
    encoder.save(tokenizer)
    for number in range(task.num_inputs):
        (folder / f"input{number}" / "dict.txt").write_bytes((tokenizer / "dict.txt").read_bytes())
    subwords = encoder.subwords
    return DataHeader(
        task=task.name,
        labels=task.labels,
        regression=task.regression,
        label_range=task.label_range,
        metrics=task.metrics,
        main_metric=task.main_metric,
        num_inputs=task.num_inputs,
        bpe=subwords.kind,
        lower_case=subwords.lower_case,
        vocab_file=subwords.vocab_file,
        vocab_sha256=sha256_of(tokenizer / subwords.vocab_file),
        init_token=BOS,
        separator_token=EOS if subwords.separators == 2 else None,
        max_length=max_length,
        splits=splits,
        moses_detokenize=encoder.moses_detokenize,
        multi_label=task.multi_label,
    )
