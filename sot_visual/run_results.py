"""What a run has left in its folder, in one form for texts and images.

``results.json`` is written by the GLUE scripts and the probes, ``summary.csv`` by the trainings on images.
"""

from __future__ import annotations

import csv
import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import msgspec

from sot_base.errors import UsageError
from sot_base.small_files import read_json, read_text

__all__ = ["Curve", "Result", "read_run"]

RESULTS = "results.json"
SUMMARY = "summary.csv"
COUNTS = ("bad_images", "train_bad_images", "train_skipped")  # columns of a log that are no curves
LARGEST = 1e9  # of a number
MISTAKE = "run the training again, or leave this folder out"


@dataclass(frozen=True)
class Result:
    """A metric of a head on a split.

    Attributes:
        run: Name of the run.
        task: Name of the data; empty if the run does not tell.
        split: Name of the split.
        metric: Name of the metric.
        head: Name of the head; empty for a run with only one.
        values: The metric in percent by the name of each seed; for a training on images its best epoch, by number.
        parameters: Parameters of the head, if known.
        command: The command of the first training, if known.
    """

    run: str
    task: str
    split: str
    metric: str
    head: str
    values: dict[str, float]
    parameters: int | None = None
    command: str = ""

    @property
    def label(self) -> str:
        """Run and head."""
        return f"{self.run}, {self.head}" if self.head else self.run


@dataclass(frozen=True)
class Curve:
    """The columns of a training's log.

    Attributes:
        run: Name of the run.
        unit: What the rows count: epoch or step.
        places: Number of each row.
        columns: Values of each column, one for each row; NaN where a row has none.
    """

    run: str
    unit: str
    places: list[float]
    columns: dict[str, list[float]] = field(default_factory=dict)


class _Seed(msgspec.Struct):
    metrics: dict[str, dict[str, float]]
    command: str | None = None


class _Head(msgspec.Struct):
    seeds: dict[str, _Seed]
    parameters: int | None = None


class _Results(msgspec.Struct):
    task: str
    heads: dict[str, _Head]


def read_run(folder: Path, name: str) -> tuple[list[Result], Curve | None]:
    """Read the results of a run.

    Args:
        folder: The folder of the run.
        name: What to call it.

    Returns:
        Its metrics, and its curves if it wrote a log of epochs.

    Raises:
        UsageError: if the folder has neither file, or a file is malformed.
    """
    if (folder / RESULTS).exists():
        return _read_results(folder / RESULTS, name), None
    if (folder / SUMMARY).exists():
        curve = _read_summary(folder / SUMMARY, name)
        return _best_epochs(curve), curve
    raise UsageError(f"neither {RESULTS} nor {SUMMARY}: {folder.absolute()}; give the folder of a finished run")


def _read_results(path: Path, name: str) -> list[Result]:
    content = read_json(path, _Results, MISTAKE)
    found: dict[tuple[str, str, str], Result] = {}
    for head, trained in content.heads.items():
        for seed, run in trained.seeds.items():
            for split, metrics in run.metrics.items():
                for metric, value in metrics.items():
                    if abs(value) > LARGEST:
                        raise UsageError(
                            f"{metric} of head {head}, seed {seed} is {value:g}: {path.absolute()}; {MISTAKE}"
                        )
                    new = Result(name, content.task, split, metric, head, {}, trained.parameters, run.command or "")
                    found.setdefault((head, split, metric), new).values[seed] = value
    if not found:
        raise UsageError(f"no metrics: {path.absolute()}; {MISTAKE}")
    return list(found.values())


def _read_summary(path: Path, name: str) -> Curve:
    lines = read_text(path, MISTAKE).splitlines()
    header, *rows = [row for row in csv.reader(lines) if row] or [[]]
    if len(header) < 2 or not rows:
        raise UsageError(f"no epochs: {path.absolute()}; {MISTAKE}")
    values = [_numbers(row, header, path, line) for line, row in enumerate(rows, 2)]
    columns = dict(zip(header, map(list, zip(*values, strict=True)), strict=True))
    columns = {column: numbers for column, numbers in columns.items() if column not in COUNTS}
    return Curve(name, header[0], columns.pop(header[0]), columns)


def _numbers(row: Sequence[str], header: Sequence[str], path: Path, line: int) -> list[float]:
    try:
        numbers = [float(word or "nan") for word in row]
    except ValueError as error:
        raise UsageError(f"{error}: {path.absolute()}, line {line}; {MISTAKE}") from None
    if len(row) != len(header):
        raise UsageError(f"{len(row)} columns, the header has {len(header)}: {path.absolute()}, line {line}; {MISTAKE}")
    if not abs(numbers[0]) <= LARGEST:
        raise UsageError(f"{header[0]} {row[0]}: {path.absolute()}, line {line}; {MISTAKE}")
    return [number if abs(number) <= LARGEST else math.nan for number in numbers]  # what diverged is not drawn


def _best_epochs(curve: Curve) -> list[Result]:
    """The highest value of each metric, with the number of its epoch."""
    found = []
    for column, values in curve.columns.items():
        is_other = column == "lr" or column.startswith("train_") or column.endswith("loss")
        if is_other or all(map(math.isnan, values)):
            continue
        best = max((index for index, value in enumerate(values) if not math.isnan(value)), key=values.__getitem__)
        head = "averaged weights" if column.startswith("ema_") else ""
        metric = column.removeprefix("ema_").removeprefix("eval_")
        place = f"{curve.unit} {curve.places[best]:.0f}"
        found.append(Result(curve.run, "", "validation", metric, head, {place: values[best]}))
    return found
