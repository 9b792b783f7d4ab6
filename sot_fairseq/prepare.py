r"""Prepare a run: find the encoder, preprocess the data, write the command of each training.

    python -m sot_fairseq.prepare --task RTE --encoder roberta.base --data-dir glue_data --output-dir out/rte \
        [--heads mgcrp cls] [--seeds 1 2 3] [--lr LR] [--batch-size B] [--max-epoch E] [-- extra arguments]

The output folder gets ``data/``, ``encoder/`` (a conversion, where one is needed), ``run.json`` (the settings) and
``<head>/seed-<n>/command.txt``, a ``fairseq-train`` command for the shell. The task's data and a named encoder are
downloaded if they are not on this machine; ``--download TASK ...`` does only that. What is not given is taken from the
table of :mod:`sot_text.hyperparameters`. Extra arguments end the commands, so that they override all else, but not
what tells the trainings apart (``--seed``, ``--save-dir``, the head).
"""

from __future__ import annotations

import argparse
import dataclasses
from collections.abc import Sequence

from sot_base.command_help import show_help
from sot_text.run_folder import run_parser

if __name__ == "__main__":  # before the imports that take seconds
    show_help(lambda: run_parser("python -m sot_fairseq.prepare", __doc__.split("\n")[0]))

import torch

from sot_base.errors import UsageError, run_main
from sot_fairseq import preprocess
from sot_fairseq.data.header import DataHeader
from sot_fairseq.encoders import Encoder, check_encoder, fetch_encoder, find
from sot_fairseq.runs.recipe import parse_recipe_options, train_command
from sot_fairseq.tasks.kept_head import read_head
from sot_text.glue import GlueTask, get_task
from sot_text.glue_files import download_missing
from sot_text.hyperparameters import Hyperparameters, get_hyperparameters
from sot_text.run_folder import (
    Training,
    apply_options,
    check_same_run,
    data_checksums,
    parse_run,
    say,
    write_commands,
    write_settings,
)
from sot_text.splits import find_data

__all__ = ["main"]


def main(arguments: Sequence[str] | None = None) -> None:
    """Prepare a run from the command line."""
    args, words = parse_run("python -m sot_fairseq.prepare", __doc__.split("\n")[0], arguments)
    _check_words(words, args.heads)
    in_words = parse_recipe_options(words)
    check_encoder(args.encoder)
    if args.download:
        download_missing(args.download, args.data_dir)
        fetch_encoder(args.encoder)
        return
    task = get_task(args.task)
    table = get_hyperparameters(task.name, args.encoder, in_words.freeze_backbone)
    values, origin = apply_options(table, args, in_words)
    download_missing([task.name], args.data_dir)
    data = find_data(task, args.data_dir, "--data-dir", task.splits[:1])
    run = {"task": task.name, "encoder": args.encoder, **dataclasses.asdict(values), "words": words}
    run |= {"force_lower_case": args.force_lower_case, "data": data_checksums(task, data)}
    check_same_run(args.output_dir, run, "checkpoint_*.pt")
    fetch_encoder(args.encoder)
    write_settings(args.output_dir, run)
    say(f"hyper-parameters: {origin}")
    say(f"device: {_device(words)}")
    say(f"encoder: {args.encoder}")
    encoder = find(args.encoder, args.output_dir / "encoder")
    if in_words.keep_head:
        _check_kept_head(encoder, args.heads)
    say(f"data: {data} -> {args.output_dir / 'data'}")
    header = _preprocess(args, task, values, encoder)

    def command(training: Training) -> list[str]:
        return train_command(args.output_dir / "data", header, encoder, values, *training, words)

    write_commands(args, command)


def _preprocess(args: argparse.Namespace, task: GlueTask, values: Hyperparameters, encoder: Encoder) -> DataHeader:
    words = ["--task", task.name, "--data-dir", str(args.data_dir), "--output-dir", str(args.output_dir / "data")]
    words += encoder.preprocess_args
    words += ["--max-length", str(values.max_length)] if values.max_length else []
    words += ["--force-lower-case"] if args.force_lower_case else []
    preprocess.main(words)
    return DataHeader.load(args.output_dir / "data")


def _check_kept_head(encoder: Encoder, heads: Sequence[str]) -> None:
    """Refuse to train the head of a checkpoint under the name of another one."""
    if encoder.restore_file is None:
        raise UsageError("an encoder without a checkpoint has no head: --keep-head; leave it out")
    kept = read_head(encoder.restore_file).kind
    if list(heads) != [kept]:
        raise UsageError(
            f"--keep-head trains the head of {encoder.restore_file}: --heads (HEAD) {' '.join(heads)}; give {kept}"
        )


def _device(words: Sequence[str]) -> str:
    """What ``fairseq-train`` will run on."""
    if "--cpu" in words:
        return "CPU (--cpu)"
    return torch.cuda.get_device_name() if torch.cuda.is_available() else "CPU (torch finds no GPU)"


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


if __name__ == "__main__":
    run_main(main)
