"""The command line of ``python -m sot_fairseq.predict`` and ``python -m sot_hf.predict``.

The input is one of

* standard input (no file, or ``-``): one text a line, the two of a pair with a tab between them, no header line. An
  empty line is an empty text, or two;
* a file of the GLUE task that the model was trained on, or of ``--task``: train, dev or test, recognised by the file's
  name or else by its first line;
* any TSV file with a header line and ``--text-columns``.

The output goes to standard output or ``--output``: the label and one column of probabilities for each class, in the
model's order, with a header line if the input is a file; or with ``--json`` one JSON object a line. A regression gives
the number alone, a model of several labels those whose probability is at least ``--threshold``, as ``a,b``. Lines of
standard input give as many lines.
``--submission`` writes what GLUE's server takes, into a file or under GLUE's name into a folder, and nothing else
unless ``--output`` or ``--json`` is given as well.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import logging
import os
import sys
from collections.abc import Callable, Iterable, Iterator
from itertools import islice
from pathlib import Path
from typing import TextIO

from tqdm import tqdm

from sot_base.atomic import atomic_file
from sot_base.errors import UsageError
from sot_base.names import join_names
from sot_text.glue import GlueTask, get_task
from sot_text.prediction import Prediction, Predictor
from sot_text.read_input import Row, read_lines, read_texts
from sot_text.submission import (
    INDEX_COLUMNS,
    check_submission,
    submission_indices,
    submission_path,
    write_submission,
)

__all__ = ["run_predict"]

CHUNK = 4096  # rows predicted and written at once: bounds the memory


def run_predict(args: argparse.Namespace, load: Callable[[], tuple[Predictor, GlueTask | None]]) -> None:
    """Predict as the options say.

    Args:
        args: The options of :func:`sot_text.command_options.predict_parser`.
        load: Returns the model, and the GLUE task it was trained on; None if that is unknown.

    Raises:
        UsageError: if options or input do not fit the model.
    """
    logging.basicConfig(level=logging.WARNING, format="%(levelname)s: %(message)s")
    _check_options(args)
    predictor, trained_task = load()
    task = get_task(args.task) if args.task else trained_task
    if task is None and args.submission is not None:
        raise UsageError("the model's data are not those of a GLUE task: --submission; give --task")
    if args.input == "-":
        table = None
        rows: Iterable[Row] = read_lines(sys.stdin.buffer, predictor.num_inputs)
    else:
        optional = INDEX_COLUMNS if args.submission is not None else ()
        table, columns = read_texts(Path(args.input), args.text_columns, task, predictor.num_inputs, optional=optional)
        rows = zip(*(table.columns[column] for column in columns), strict=True)
    submission, indices = None, []
    if args.submission is not None and task is not None and table is not None:
        check_submission(task, predictor.labels)
        indices = submission_indices(table, task)
        submission = submission_path(args.submission, task, Path(args.input))
    labels: list[str | float | tuple[str, ...]] = []
    with _output(args.output, silent=submission is not None and not args.json) as stream:
        if stream is not None and table is not None and not args.json:
            stream.write("\t".join(["label", *predictor.labels] if predictor.labels else ["prediction"]) + "\n")
        for predictions in _predict(predictor, rows, None if table is None else len(table), args):
            if stream is not None:
                as_line = _as_json if args.json else _as_tsv
                stream.writelines(as_line(prediction) + "\n" for prediction in predictions)
            if submission is not None:
                labels += [prediction.label for prediction in predictions]
    if submission is not None and task is not None:
        write_submission(submission, task, indices, labels)
        sys.stderr.write(f"wrote {submission}\n")


def _check_options(args: argparse.Namespace) -> None:
    if args.text_columns and args.task:
        raise UsageError("--text-columns beside --task: the command line; leave one out")
    if args.input == "-" and sys.stdin is None:
        raise UsageError("standard input is closed: the command line; name a file, or pipe lines in")
    for option, path in (("--output", args.output), ("--submission", args.submission)):
        if path and os.path.isfile(path) and os.path.exists(args.input) and os.path.samefile(path, args.input):
            raise UsageError(f"{option} would replace the input: {os.path.abspath(path)}; choose another")
    if args.input == "-":
        given = [name for name in ("task", "text_columns", "submission") if getattr(args, name) is not None]
        if given:
            raise UsageError(f"--{given[0].replace('_', '-')} without a file: the command line; name the TSV file")
    if args.batch_size < 1:
        raise UsageError(f"not a positive number: --batch-size {args.batch_size}; give 1 or more")
    if not 0 <= args.threshold <= 1:
        raise UsageError(f"not a probability: --threshold {args.threshold:g}; give a number from 0 to 1")


def _predict(
    predictor: Predictor, rows: Iterable[Row], count: int | None, args: argparse.Namespace
) -> Iterator[list[Prediction]]:
    """Predict the rows in chunks; a progress bar appears if standard error is a terminal and the output is not."""
    rows = iter(rows)
    hidden = True if args.output is None and sys.stdout.isatty() else None
    with tqdm(total=count, desc="predicting", unit=" rows", leave=False, disable=hidden) as bar:
        while chunk := list(islice(rows, CHUNK)):
            yield predictor.predict(chunk, args.batch_size, args.threshold)
            bar.update(len(chunk))


@contextlib.contextmanager
def _output(path: str | None, silent: bool) -> Iterator[TextIO | None]:
    """The stream to write to; None if nothing is asked for."""
    if path is not None:
        with atomic_file(path) as temporary, temporary.open("w", encoding="utf-8", newline="\n") as stream:
            yield stream
    else:
        yield None if silent else sys.stdout


def _as_tsv(prediction: Prediction) -> str:
    if not prediction.probabilities:
        return f"{prediction.label:.6g}"
    label = join_names(prediction.label) if isinstance(prediction.label, tuple) else str(prediction.label)
    return "\t".join([label, *(f"{value:.6f}" for value in prediction.probabilities.values())])


def _as_json(prediction: Prediction) -> str:
    if not prediction.probabilities:
        return json.dumps({"prediction": prediction.label})
    return json.dumps(prediction._asdict(), ensure_ascii=False)
