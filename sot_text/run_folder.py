"""The folder of a run of ``glue_scripts``, on either text side: its options, its settings, a command for each training.

The folder has ``run.json`` (the settings) and ``<head>/seed-<n>/command.txt``, a command for the shell.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import shlex
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from sot_base.atomic import atomic_file
from sot_base.download.file import sha256_of
from sot_base.errors import UsageError
from sot_base.small_files import read_json
from sot_text.glue import GlueTask
from sot_text.hyperparameters import Hyperparameters

__all__ = [
    "RUN_FILE",
    "Training",
    "apply_options",
    "check_same_run",
    "data_checksums",
    "parse_run",
    "run_parser",
    "say",
    "write_commands",
    "write_settings",
]

HEADS = ("mgcrp", "gcp", "gap", "cls")
RUN_FILE = "run.json"
GIVEN = ("lr", "batch_size", "max_epoch", "max_length")  # options that replace the table's values

Training = tuple[str, int, Path]  # head, seed, folder


def parse_run(prog: str, description: str, arguments: Sequence[str] | None) -> tuple[argparse.Namespace, list[str]]:
    """Parse a command line that prepares a run.

    Args:
        prog: The command, for ``--help``.
        description: What it does, for ``--help``.
        arguments: The arguments; None for those of the process. Those after ``--`` are for the training command.

    Returns:
        The options, and the arguments for the training command.

    Raises:
        UsageError: If a number is out of range.
    """
    arguments = list(sys.argv[1:] if arguments is None else arguments)
    end = arguments.index("--") if "--" in arguments else len(arguments)
    args = run_parser(prog, description).parse_args(arguments[:end])
    for name in GIVEN:
        value = getattr(args, name)
        if value is not None and not 0 < value < float("inf"):
            raise UsageError(f"not a positive number: --{name.replace('_', '-')} {value}; correct it")
    for seed in args.seeds:
        if not 0 <= seed < 2**32:  # what numpy takes
            raise UsageError(f"not a valid seed: --seeds {seed}; give whole numbers from 0 to {2**32 - 1}")
    return args, arguments[end + 1 :]


def run_parser(prog: str, description: str) -> argparse.ArgumentParser:
    """The parser of a command that prepares a run."""
    parser = argparse.ArgumentParser(prog=prog, description=description)
    what = parser.add_mutually_exclusive_group(required=True)
    what.add_argument("--task", help="a GLUE task")
    what.add_argument(
        "--download", nargs="+", metavar="TASK", help="only download what these tasks need and this machine lacks"
    )
    parser.add_argument("--encoder", required=True, help="a name or a path")
    parser.add_argument("--data-dir", required=True, type=Path, help="the folder with GLUE's folders")
    parser.add_argument("--output-dir", required=True, type=Path, help="the run's folder")
    parser.add_argument("--heads", nargs="+", choices=HEADS, default=["mgcrp", "cls"], help="what is compared")
    parser.add_argument("--seeds", nargs="+", type=int, default=[1], help="one training each")
    parser.add_argument("--lr", type=float, help="peak learning rate (default: the table's)")
    parser.add_argument("--batch-size", type=int, help="sentences in an update (default: the table's)")
    parser.add_argument("--max-epoch", type=int, help="epochs (default: the table's)")
    parser.add_argument(
        "--max-length", type=int, help="shorten samples to so many tokens, special ones included (default: the table's)"
    )
    parser.add_argument(
        "--force-lower-case", action="store_true", help="lower-case text even if BERT's vocabulary is cased"
    )
    return parser


def apply_options(
    values: Hyperparameters, args: argparse.Namespace, in_arguments: argparse.Namespace | None = None
) -> tuple[Hyperparameters, str]:
    """Replace the table's values by those of the options, and these by those among the training's arguments.

    Returns:
        The values, and where they come from, in words.
    """
    given: dict[str, Any] = {}
    for source in (args, in_arguments):
        options = {name: getattr(source, name, None) for name in GIVEN}
        given |= {name: value for name, value in options.items() if value is not None}
    origin = (f"given are {', '.join(given)}; the rest: " if given else "") + values.source
    return dataclasses.replace(values, **given), origin


def data_checksums(task: GlueTask, folder: Path) -> dict[str, str]:
    """Checksums of the train and dev files in a task's folder."""
    files = [folder / split.file for split in task.splits if not split.is_test]
    return {file.name: sha256_of(file) for file in files if file.is_file()}


def check_same_run(output: Path, run: dict[str, Any], checkpoints: str) -> None:
    """Refuse a folder that another run's checkpoints are in: its results are neither mixed with these nor lost.

    Args:
        output: The run's folder.
        run: The settings.
        checkpoints: The pattern of a training's checkpoints, in its folder.

    Raises:
        UsageError: If the settings differ; it names them.
    """
    file = output / RUN_FILE
    if not any(output.glob(f"*/seed-*/{checkpoints}")):
        return
    old = read_json(file, dict[str, Any], "give another OUT_DIR") if file.is_file() else {}
    names = [name for name in run if name not in ("source", "data") and old.get(name) != run[name]]
    differing = [f"{name} {str(old.get(name))[:60]}, now {run[name]}" for name in names]
    differing += ["the data files"] if old.get("data", run["data"]) != run["data"] else []
    if differing:
        raise UsageError(
            f"the folder holds a run with other settings ({', '.join(differing)}): {output}; give another OUT_DIR"
        )


def write_settings(output: Path, run: dict[str, Any]) -> None:
    """Write ``run.json``."""
    with atomic_file(output / RUN_FILE) as path:
        path.write_text(json.dumps(run, indent=2) + "\n", encoding="utf-8")


def write_commands(args: argparse.Namespace, command: Callable[[Training], list[str]]) -> None:
    """Write ``command.txt`` for each head and seed."""
    for head in args.heads:
        for seed in args.seeds:
            folder = args.output_dir / head / f"seed-{seed}"
            with atomic_file(folder / "command.txt") as path:
                path.write_text(shlex.join(command((head, seed, folder))) + "\n", encoding="utf-8")


def say(text: str) -> None:
    """Print a heading."""
    print(f"\n== {text}", flush=True)  # noqa: T201
