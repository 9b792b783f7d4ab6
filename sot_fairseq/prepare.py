r"""Prepare a run: find the encoder, preprocess the data, write the command of each training.

    python -m sot_fairseq.prepare --task RTE --encoder roberta.base --data-dir glue_data --output-dir out/rte \
        [--heads mgcrp cls] [--seeds 1 2 3] [--lr LR] [--batch-size B] [--max-epoch E] [-- extra arguments]

The output folder gets ``data/``, ``encoder/`` (a conversion, where one is needed), ``run.json`` (the settings) and
``<head>/seed-<n>/command.txt``, a ``fairseq-train`` command for the shell. What is not given is taken from the table
of :mod:`sot_text.hyperparameters`. Further words end the commands, so that they go before all else, but not before what
tells the trainings apart (``--seed``, ``--save-dir``, the head).
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import shlex
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from sot_base.atomic import atomic_file
from sot_base.download.file import sha256_of
from sot_base.errors import UsageError, run_main
from sot_base.small_files import read_json
from sot_fairseq import preprocess
from sot_fairseq.data.header import DataHeader
from sot_fairseq.encoders import find
from sot_fairseq.runs.recipe import parse_recipe_options, train_command
from sot_text.glue import GlueTask, get_task
from sot_text.hyperparameters import Hyperparameters, get_hyperparameters
from sot_text.splits import find_data

__all__ = ["RUN_FILE", "main"]

HEADS = ("mgcrp", "gcp", "gap", "cls")
RUN_FILE = "run.json"


def main(arguments: Sequence[str] | None = None) -> None:
    """Prepare a run from the command line."""
    arguments = list(sys.argv[1:] if arguments is None else arguments)
    end = arguments.index("--") if "--" in arguments else len(arguments)
    args, words = _parser().parse_args(arguments[:end]), arguments[end + 1 :]
    output = args.output_dir
    _check_words(words, args.heads)
    _check_numbers(args)
    values = _hyperparameters(args, words)
    run = {"task": get_task(args.task).name, "encoder": args.encoder, **dataclasses.asdict(values), "words": words}
    run["data"] = _checksums(get_task(args.task), args.data_dir)
    _check_same_run(output, run)
    with atomic_file(output / RUN_FILE) as path:
        path.write_text(json.dumps(run, indent=2) + "\n", encoding="utf-8")
    _say(f"encoder: {args.encoder}")
    encoder = find(args.encoder, output / "encoder")
    _say(f"data: {args.data_dir / run['task']} -> {output / 'data'}")
    data = ["--task", run["task"], "--data-dir", str(args.data_dir), "--output-dir", str(output / "data")]
    preprocess.main([*data, *encoder.preprocess_args])
    header = DataHeader.load(output / "data")
    for head in args.heads:
        for seed in args.seeds:
            folder = output / head / f"seed-{seed}"
            command = train_command(output / "data", header, encoder, values, head, seed, folder, words)
            with atomic_file(folder / "command.txt") as path:
                path.write_text(shlex.join(command) + "\n", encoding="utf-8")


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m sot_fairseq.prepare", description=__doc__.split("\n")[0])
    parser.add_argument("--task", required=True, help="a GLUE task")
    parser.add_argument("--encoder", required=True, help="a name, a path, or scratch:<layers>x<dim>")
    parser.add_argument("--data-dir", required=True, type=Path, help="the folder with GLUE's folders")
    parser.add_argument("--output-dir", required=True, type=Path, help="the run's folder")
    parser.add_argument("--heads", nargs="+", choices=HEADS, default=["mgcrp", "cls"], help="what is compared")
    parser.add_argument("--seeds", nargs="+", type=int, default=[1], help="one training each")
    parser.add_argument("--lr", type=float, help="peak learning rate (default: the table's)")
    parser.add_argument("--batch-size", type=int, help="sentences in an update (default: the table's)")
    parser.add_argument("--max-epoch", type=int, help="epochs (default: the table's)")
    return parser


def _hyperparameters(args: argparse.Namespace, words: Sequence[str]) -> Hyperparameters:
    """The table's values, replaced by those of the options, and these by those of the extra arguments."""
    in_words = parse_recipe_options(words)
    values = get_hyperparameters(args.task, args.encoder, in_words.freeze_backbone)
    given: dict[str, Any] = {}
    for source in (args, in_words):
        options = {name: getattr(source, name, None) for name in ("lr", "batch_size", "max_epoch")}
        given |= {name: value for name, value in options.items() if value is not None}
    _say("hyper-parameters: " + (f"given are {', '.join(given)}; the rest: " if given else "") + values.source)
    return dataclasses.replace(values, **given)


def _check_numbers(args: argparse.Namespace) -> None:
    for name in ("lr", "batch_size", "max_epoch"):
        value = getattr(args, name)
        if value is not None and not 0 < value < float("inf"):
            raise UsageError(f"not a positive number: --{name.replace('_', '-')} {value}; correct it")
    for seed in args.seeds:
        if not 0 <= seed < 2**32:  # what numpy takes
            raise UsageError(f"not a valid seed: --seeds {seed}; give whole numbers from 0 to {2**32 - 1}")


def _check_words(words: Sequence[str], heads: Sequence[str]) -> None:
    """Refuse arguments that would make the trainings of several heads or seeds identical."""
    own = {"--seed": "--seeds (SEEDS)", "--save-dir": "--output-dir (OUT_DIR)", "--head-pooling": "--heads (HEAD)"}
    given = {word.partition("=")[0] for word in words}
    for option in own:
        if option in given:
            raise UsageError(f"{option} would apply to every training: the extra arguments; give {own[option]}")
    if "--head-fusion" in given and "cls" in heads:
        raise UsageError(
            "--head-fusion would replace the head cls: the extra arguments; leave cls out of --heads (HEAD)"
        )


def _checksums(task: GlueTask, data_dir: Path) -> dict[str, str]:
    """Checksums of the train and dev files."""
    folder = find_data(task, data_dir, "--data-dir", task.splits[:1])
    files = [folder / split.file for split in task.splits if not split.is_test]
    return {file.name: sha256_of(file) for file in files if file.is_file()}


def _check_same_run(output: Path, run: dict[str, Any]) -> None:
    """Refuse a folder that another run's checkpoints are in: its results are neither mixed with these nor lost."""
    file = output / RUN_FILE
    if not any(output.glob("*/seed-*/checkpoint_*.pt")):
        return
    old = read_json(file, dict[str, Any], "give another OUT_DIR") if file.is_file() else {}
    names = [name for name in run if name not in ("source", "data") and old.get(name) != run[name]]
    differing = [f"{name} {str(old.get(name))[:60]}, now {run[name]}" for name in names]
    differing += ["the data files"] if old.get("data", run["data"]) != run["data"] else []
    if differing:
        raise UsageError(
            f"the folder holds a run with other settings ({', '.join(differing)}): {output}; give another OUT_DIR"
        )


def _say(text: str) -> None:
    print(f"\n== {text}", flush=True)  # noqa: T201


if __name__ == "__main__":
    run_main(main)
