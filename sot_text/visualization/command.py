"""The command line of ``python -m sot_fairseq.visualize`` and ``python -m sot_hf.visualize``."""

from __future__ import annotations

import argparse
import logging
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

import torch

from sot_base.atomic import atomic_file
from sot_base.errors import UsageError
from sot_text.glue import GlueTask, get_task
from sot_text.read_input import read_lines, read_texts
from sot_text.visualization.check import check_text
from sot_text.visualization.explain import Explanation, explain, find_class
from sot_text.visualization.picture import MAX_ITEMS, draw_items
from sot_text.visualization.render import as_page, as_terminal
from sot_text.visualization.text_model import TextModel
from sot_visual.attribution import attribute
from sot_visual.check import check_table, draw_checks, usable_methods
from sot_visual.figures import save_figure
from sot_visual.outputs import check_figure, check_outputs, is_page
from sot_visual.plots import draw_spectrum
from sot_visual.spectrum import record_spectrum

__all__ = ["run_visualize"]

Row = tuple[str, ...]


def run_visualize(args: argparse.Namespace, load: Callable[[], tuple[TextModel, GlueTask | None, int | None]]) -> None:
    """Explain, or check, as the options say.

    Args:
        args: The options of :func:`sot_text.command_options.visualize_parser`.
        load: Returns the model, its task and the number of texts in a row, each of the last two None if unknown.

    Raises:
        UsageError: if options or input do not fit the model.
    """
    logging.basicConfig(level=logging.WARNING, format="%(levelname)s: %(message)s")
    outputs = check_outputs(args.output or (), figures_only=args.check)
    check_figure("--spectrum", args.spectrum)
    model, task, num_inputs = load()
    rows, truths = _read(args, get_task(args.task) if args.task else task, num_inputs)
    if not rows and (args.check or args.spectrum or outputs):
        raise UsageError("no texts: standard input; pipe lines in, or name a file")
    if args.check:
        _check(args, model, rows, outputs)
        return
    if args.spectrum:
        view, encoded = model.view(), model.encode(rows)
        spectra = record_spectrum(view.head, lambda: model.logits(encoded, args.batch_size))
        draw_spectrum(*spectra, args.spectrum, f"{_name(args.input)}, {len(rows)} texts")
        return
    items = explain(model, rows, truths, args.method, find_class(model, args.target), args.batch_size)
    if args.rows:
        items = (_with_rows(item, args.rows) for item in items)
    if not outputs:
        for item in items:
            sys.stdout.write(as_terminal(item))
        return
    title, found = f"{Path(args.checkpoint).name}: {_name(args.input)}", list(items)
    for path in outputs:
        if is_page(path):
            with atomic_file(path) as temporary:
                temporary.write_text(as_page(found, title, args.method), encoding="utf-8")
        else:
            save_figure(draw_items(found[:MAX_ITEMS], title), path)
        sys.stderr.write(f"wrote {path}\n")


def _name(path: str) -> str:
    return "standard input" if path == "-" else Path(path).name


def _read(
    args: argparse.Namespace, task: GlueTask | None, num_inputs: int | None
) -> tuple[list[Row], list[str | None]]:
    """The texts, and their labels where the file has them."""
    if args.input == "-":
        if sys.stdin is None:
            raise UsageError("standard input is closed: the command line; name a file, or pipe lines in")
        rows = list(read_lines(sys.stdin.buffer, num_inputs))
        return rows, [None] * len(rows)
    path = Path(args.input)
    if args.text_columns:
        label, required, optional = args.label_column, [args.label_column] if args.label_column else [], []
    else:
        label = task.splits[0].label_column if task is not None else None
        required, optional = [], [label] if label else []
    table, columns = read_texts(path, args.text_columns, task, num_inputs, required, optional)
    rows = list(zip(*(table.columns[column][: args.limit] for column in columns), strict=True))
    labels: list[str | None] = [*table.columns.get(label, ())][: args.limit]
    return rows, labels or [None] * len(rows)


def _with_rows(item: Explanation, parts: Sequence[str]) -> Explanation:
    scores = {part: values for part, values in item.scores.items() if part in parts}
    if not scores:
        raise UsageError(f"the model has no part {' or '.join(parts)}: --rows; give one of {', '.join(item.scores)}")
    return Explanation(**{**vars(item), "scores": scores})


def _check(args: argparse.Namespace, model: TextModel, rows: Sequence[Row], outputs: Sequence[Path]) -> None:
    if not model.labels:
        raise UsageError("the model predicts a number: --check needs a probability; give a classifier")
    sample = [row for row in rows if any(text.strip() for text in row)][:1]
    view, inputs = model.view(), model.collate(model.encode(sample or rows[:1]))
    target = torch.zeros(1, dtype=torch.long, device=inputs[0].device)
    methods, reasons = usable_methods(lambda name: attribute(view, inputs, target, name), args.check_methods)
    for reason in reasons:
        sys.stderr.write(f"left out: {reason}\n")
    checks = check_text(model, rows, methods, args.batch_size)
    count = len(checks[0].curves)
    sys.stdout.write(f"{count} texts, mean ± standard error\n\n{check_table(checks)}\n")
    for path in outputs:
        save_figure(draw_checks(checks, f"{_name(args.input)}, {count} texts"), path)
        sys.stderr.write(f"wrote {path}\n")
