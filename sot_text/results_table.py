"""Dev metrics of every head and seed of a run, in ``results.json`` and as a table, on either text side.

Where the authors report a number for the same encoder, task, split, metric and kind of head, it stands in a column of
its own, ``reported``, from ``sot_text/tables/reported.tsv``. All other columns are measured here.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, NotRequired, TypedDict

import msgspec

from sot_base.atomic import atomic_file
from sot_base.errors import UsageError
from sot_base.markdown import markdown_table
from sot_base.small_files import read_json
from sot_base.summary import Summary, summarize
from sot_text.hyperparameters import TABLES, read_table
from sot_text.run_folder import RUN_FILE

__all__ = [
    "FAILED",
    "Results",
    "SeedResults",
    "finished_trainings",
    "gather",
    "read_reported",
    "read_run",
    "read_saved",
    "results_parser",
    "show_results",
    "table",
]

RESULTS = "results.json"
FAILED = "failed.txt"  # beside the checkpoints of a training that failed, with the reason (glue_scripts/finetune.py)
REPORTED = TABLES / "reported.tsv"
REPORTED_KEYS = ("encoder", "task", "split", "metric", "head")


class SeedResults(TypedDict):
    """A training: ``{split: {metric: percent}}``, and its command where it is known."""

    metrics: dict[str, dict[str, float]]
    command: str | None


class HeadResults(TypedDict):
    """The trainings of a head by seed, and ``{split: {metric: summary}}``."""

    seeds: dict[str, SeedResults]
    summary: dict[str, dict[str, Summary]]


class Results(TypedDict):
    """The content of ``results.json``; ``failed`` holds the last line of each training that failed."""

    task: str
    encoder: str | None
    metric: str
    unit: str
    heads: dict[str, HeadResults]
    failed: NotRequired[dict[str, str]]


class _Run(msgspec.Struct):
    """What is read of ``run.json``."""

    task: str | None = None
    encoder: str | None = None


def read_run(out_dir: Path) -> _Run:
    """Read what a run's ``run.json`` says of task and encoder; nothing if it is absent."""
    path = out_dir / RUN_FILE
    return read_json(path, _Run, "remove it, or run the script again") if path.exists() else _Run()


def finished_trainings(out_dir: Path, mark: str) -> list[Path]:
    """The folders ``<head>/seed-<n>`` of trainings that left a file and did not fail, by head and seed.

    Raises:
        UsageError: if there is none.
    """
    found = [path.parent for path in out_dir.glob(f"*/seed-*/{mark}")]
    folders = [path for path in found if path.name[5:].isdecimal() and not (path / FAILED).exists()]  # not seed-1.old
    if not folders:
        raise UsageError(f"no <head>/seed-<n>/{mark}: {out_dir.absolute()}; run a script of glue_scripts first")
    return sorted(folders, key=lambda path: (path.parent.name, int(path.name[5:])))


def gather(
    out_dir: Path,
    task: str,
    metric: str,
    folders: list[Path],
    measure: Callable[[Path], dict[str, dict[str, float]]],
) -> Results:
    """Measure every training of a run.

    Args:
        out_dir: The folder that a script of ``glue_scripts`` wrote.
        task: GLUE's name, or that of own data.
        metric: The main metric.
        folders: Those of the trainings.
        measure: Gives the metrics (percent) of a training by split, named after its file, and metric.

    Returns:
        The content of ``results.json``: task, encoder (None if it is not known), metric names, and for each head the
        metrics of each seed, with mean, standard deviation (of a sample; None for one seed) and median; trainings that
        failed, which are left out, with their reasons.
    """
    heads: dict[str, Any] = {}
    for folder in folders:
        head, seed = folder.parent.name, folder.name[5:]
        sys.stderr.write(f"evaluating {head}, seed {seed}\n")
        command = folder / "command.txt"
        text = command.read_text(encoding="utf-8").strip() if command.exists() else None
        heads.setdefault(head, {"seeds": {}})["seeds"][seed] = {"metrics": measure(folder), "command": text}
    for content in heads.values():
        content["summary"] = summarize([run["metrics"] for run in content["seeds"].values()])
    failed = {
        f"{path.parent.parent.name}/{path.parent.name}": path.read_text(encoding="utf-8").strip()
        for path in sorted(out_dir.glob(f"*/seed-*/{FAILED}"))
    }
    encoder = read_run(out_dir).encoder
    return {"task": task, "encoder": encoder, "metric": metric, "unit": "percent", "heads": heads, "failed": failed}


def read_saved(out_dir: Path) -> Results:
    """Read a run's ``results.json``.

    Raises:
        UsageError: if it is not there or not whole, naming the entry.
    """
    path = out_dir / RESULTS
    if not path.exists():
        raise UsageError(f"no {RESULTS}: {out_dir.absolute()}; leave out --saved, or run the script again")
    content = read_json(path, Results, "leave out --saved")
    for name, head in content["heads"].items():
        named = {(split, metric) for split, metrics in head["summary"].items() for metric in metrics}
        for seed, run in head["seeds"].items():
            measured = {(split, metric) for split, metrics in run["metrics"].items() for metric in metrics}
            if not named <= measured:
                raise UsageError(f"head {name}, seed {seed} lacks metrics: {path.absolute()}; leave out --saved")
    return content


def read_reported() -> dict[tuple[str, ...], float]:
    """Read what the authors report, by encoder, task, split, metric and head.

    The head ``mgcrp`` stands for their whole method, ``cls`` for the encoder's own head.
    """
    rows = read_table(REPORTED, {"value": float, "source": str}, REPORTED_KEYS)
    return {tuple(row[key] for key in REPORTED_KEYS): row["value"] for row in rows}


def table(runs: dict[str, Results]) -> str:
    """A Markdown table of ``{run name: content of results.json}``."""
    reported = read_reported()
    rows: list[tuple[str, ...]] = [
        ("run", "task", "split", "metric", "head", "n", "mean", "std", "median", "reported", "seeds")
    ]
    for run, results in runs.items():
        for head, content in results["heads"].items():
            for split, metrics in content["summary"].items():
                for metric, values in metrics.items():
                    each = ", ".join(f"{seed['metrics'][split][metric]:.2f}" for seed in content["seeds"].values())
                    std = "-" if values["std"] is None else f"{values['std']:.2f}"
                    value = reported.get((str(results.get("encoder")), results["task"], split, metric, head))
                    numbers = (str(values["n"]), f"{values['mean']:.2f}", std, f"{values['median']:.2f}")
                    theirs = "-" if value is None else f"{value:.2f}"
                    rows.append((run, results["task"], split, metric, head, *numbers, theirs, each))
    column = rows[0].index("reported")
    if any(row[column] != "-" for row in rows[1:]):
        note = "\n\nreported: by the SoT authors for this encoder (one number each); the other columns: measured here."
    else:
        rows, note = [row[:column] + row[column + 1 :] for row in rows], ""
    return markdown_table(rows) + note


def results_parser(prog: str, description: str) -> argparse.ArgumentParser:
    """The parser of :func:`show_results`."""
    parser = argparse.ArgumentParser(prog=prog, description=description)
    parser.add_argument("out_dir", nargs="+", type=Path, help="what a script of glue_scripts wrote")
    parser.add_argument("--saved", action="store_true", help="print the results.json there are, evaluate nothing")
    return parser


def show_results(prog: str, description: str, collect: Callable[[Path], Results]) -> None:
    """Collect, write and print the results of runs, from the command line.

    Args:
        prog: The command, for ``--help``.
        description: What it does, for ``--help``.
        collect: Gives the content of ``results.json`` of a run's folder.
    """
    args = results_parser(prog, description).parse_args()
    runs = {}
    names = [out_dir.resolve().name for out_dir in args.out_dir]
    for name, out_dir in zip(names, args.out_dir, strict=True):
        run = read_saved(out_dir) if args.saved else collect(out_dir)
        runs[name if names.count(name) == 1 else str(out_dir)] = run
        if not args.saved:
            with atomic_file(out_dir / RESULTS) as path:
                path.write_text(json.dumps(run, indent=2) + "\n", encoding="utf-8")
    print(table(runs))  # noqa: T201
    if not args.saved:
        print("\nwrote", ", ".join(str(out_dir / RESULTS) for out_dir in args.out_dir))  # noqa: T201
