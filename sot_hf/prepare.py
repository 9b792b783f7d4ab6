r"""Prepare a run on a Hugging Face model: its data, and the command of each training.

    python -m sot_hf.prepare --task RTE --encoder gpt --data-dir glue_data --output-dir out/rte \
        [--heads mgcrp cls] [--seeds 1 2 3] [--lr LR] [--batch-size B] [--max-epoch E] [-- extra arguments]

Writes the settings to ``run.json`` and, for each head and seed, a :mod:`sot_hf.run_glue` command to
``<head>/seed-<n>/command.txt``. The encoder is ``gpt``, or ``hf:`` followed by a folder or a model name on the Hugging
Face Hub, from which transformers downloads it. The task's data are downloaded if they are missing; ``--download TASK
...`` does only that and checks that the model exists. Values that are not given come from the table of
:mod:`sot_text.hyperparameters`. Extra arguments are appended to the commands.
"""

from __future__ import annotations

import argparse
import dataclasses
from collections.abc import Sequence
from pathlib import Path

from sot_base.command_help import show_help
from sot_text.run_folder import run_parser

if __name__ == "__main__":  # before the imports that take seconds
    show_help(lambda: run_parser("python -m sot_hf.prepare", __doc__.split("\n")[0]))

import torch

from sot_base.errors import UsageError, run_main
from sot_hf.encoders import ENCODERS
from sot_hf.load_config import load_config
from sot_text.glue import GlueTask, get_task
from sot_text.glue_files import download_missing
from sot_text.hyperparameters import HUGGING_FACE, Hyperparameters, get_hyperparameters
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

__all__ = ["ENCODERS", "main"]

OWN = {
    "seed": "--seeds (SEEDS)",
    "output_dir": "--output-dir (OUT_DIR)",
    "head_pooling": "--heads (HEAD)",
    "head_fusion": "--heads (HEAD)",
}


def main(arguments: Sequence[str] | None = None) -> None:
    """Prepare a run from the command line."""
    args, extra = parse_run("python -m sot_hf.prepare", __doc__.split("\n")[0], arguments)
    _check_extra(extra)
    model = _model(args.encoder)
    if args.download:
        download_missing(args.download, args.data_dir)
        load_config(model)
        return
    task = get_task(args.task)
    values, origin = apply_options(_hyperparameters(task, args.encoder, "--freeze_backbone" in _names(extra)), args)
    download_missing([task.name], args.data_dir)
    data = find_data(task, args.data_dir, "--data-dir", task.splits[:1])
    run = {"task": task.name, "encoder": args.encoder, **dataclasses.asdict(values), "words": extra}
    run |= {"force_lower_case": args.force_lower_case, "data": data_checksums(task, data)}
    check_same_run(args.output_dir, run, "checkpoint-*")
    load_config(model)
    write_settings(args.output_dir, run)
    say(f"hyper-parameters: {origin}")
    gpu = torch.cuda.is_available() and "--use_cpu" not in _names(extra)
    say(f"device: {torch.cuda.get_device_name() if gpu else 'CPU'}")
    say(f"encoder: {model}")

    def command(training: Training) -> list[str]:
        return _command(args, task, data, model, values, *training, extra)

    write_commands(args, command)


def _model(encoder: str) -> str:
    if encoder in ENCODERS:
        return ENCODERS[encoder]
    if encoder.startswith(HUGGING_FACE):
        return encoder.removeprefix(HUGGING_FACE)
    raise UsageError(
        f"no such encoder: {encoder}; give {', '.join(ENCODERS)}, or hf: and a folder or a name on the Hub"
    )


def _hyperparameters(task: GlueTask, encoder: str, frozen: bool) -> Hyperparameters:
    """The table's row; where it has no head, that of the BERT rows, as :mod:`sot_hf.run_glue` has it."""
    values = get_hyperparameters(task.name, encoder, frozen)
    if values.mgcrp_heads is not None:
        return values
    bert = get_hyperparameters(task.name, "bert")
    head = {name: getattr(bert, name) for name in ("mgcrp_heads", "mgcrp_q", "mgcrp_k", "head_dropout")}
    return dataclasses.replace(
        values, **head, source=f"{values.source}; on a Hugging Face model: that of the BERT rows"
    )


def _command(
    args: argparse.Namespace,
    task: GlueTask,
    data: Path,
    model: str,
    values: Hyperparameters,
    head: str,
    seed: int,
    folder: Path,
    extra: Sequence[str],
) -> list[str]:
    """A :mod:`sot_hf.run_glue` command, which resumes if it was started before."""
    fusion = ["--head-fusion", "cls"] if head == "cls" else ["--head-fusion", "sum_fc", "--head-pooling", head]
    length = [] if values.max_length is None else ["--max_seq_length", str(values.max_length)]
    return [
        *("python", "-m", "sot_hf.run_glue", "--model_name_or_path", model, "--task_name", task.name),
        *("--data_dir", str(data), "--do_train", "--do_eval", *length),
        *(["--do_lower_case", "--force_lower_case"] if args.force_lower_case else []),
        *fusion,
        *(values.head_args if head == "mgcrp" else ()),
        *("--per_device_train_batch_size", str(values.batch_size), "--learning_rate", str(values.lr)),
        *("--num_train_epochs", str(values.max_epoch), "--warmup_steps", str(values.warmup)),
        *("--weight_decay", str(values.weight_decay), "--adam_beta2", str(values.adam_beta2)),
        *("--adam_epsilon", str(values.adam_eps), "--max_grad_norm", str(values.clip_norm)),
        *("--seed", str(seed), "--output_dir", str(folder), "--resume_from_checkpoint", "last"),
        *("--disable_tqdm", "true", "--logging_steps", "10"),
        *extra,
    ]


def _names(extra: Sequence[str]) -> list[str]:
    """Options among the extra arguments, with underscores."""
    options = [word.partition("=")[0] for word in extra if word.startswith("--")]
    return ["--" + option[2:].replace("-", "_") for option in options]


def _check_extra(extra: Sequence[str]) -> None:
    """Refuse arguments that would make the trainings of several heads or seeds identical."""
    for name, instead in OWN.items():
        if f"--{name}" in _names(extra):
            raise UsageError(f"--{name} would apply to every training: the extra arguments; give {instead}")


if __name__ == "__main__":
    run_main(main)
