"""fairseq-train's command for a head and a seed: the recipe that the scripts and the YAML files share."""

from __future__ import annotations

import argparse
import math
from collections.abc import Sequence
from pathlib import Path

from sot_base.errors import UsageError
from sot_fairseq.data.header import DataHeader
from sot_fairseq.encoders import Encoder
from sot_text.hyperparameters import Hyperparameters

__all__ = ["schedule", "train_command", "parse_recipe_options"]

USER_DIR = Path(__file__).resolve().parents[1]


def schedule(rows: int, values: Hyperparameters, update_freq: int = 1, world_size: int = 1) -> tuple[int, int]:
    """Count a run's updates and those of its warm-up.

    Args:
        rows: Training samples.
        values: Batch size, epochs and the warm-up's part.
        update_freq: Batches of a process whose gradients are added up for an update.
        world_size: Processes, which share the batches.
    """
    batches = math.ceil(rows / values.batch_size)
    total = math.ceil(batches / (update_freq * world_size)) * values.max_epoch
    return total, math.floor(total * values.warmup)


def train_command(
    data: Path,
    header: DataHeader,
    encoder: Encoder,
    values: Hyperparameters,
    head: str,
    seed: int,
    save_dir: Path,
    words: Sequence[str] = (),
) -> list[str]:
    """Return the arguments of a ``fairseq-train`` command.

    Args:
        data: The preprocessed data.
        header: Their description.
        encoder: What is fine-tuned.
        values: The hyper-parameters; those of the head are for ``mgcrp`` alone.
        head: ``mgcrp``, ``gcp``, ``gap`` or ``cls``.
        seed: Of the head's initial weights, the order of samples and dropout.
        save_dir: For the checkpoints.
        words: Extra arguments; they come last and override the recipe's.
    """
    found = parse_recipe_options(words)
    shares = (found.update_freq or 1, found.distributed_world_size or 1)
    total, warmup = schedule(header.splits["train"].rows, values, *shares)
    if found.keep_head:  # whose options are the checkpoint's
        head_args = []
    else:
        fusion = "cls" if head == "cls" else "sum_fc"
        head_args = ["--head-fusion", fusion, *([] if head == "cls" else ["--head-pooling", head])]
        head_args += values.head_args if head == "mgcrp" else []
    return [
        *("fairseq-train", str(data), "--user-dir", str(USER_DIR)),
        *("--task", "sentence_prediction_mgcrp", "--criterion", "sentence_prediction_mgcrp"),
        *encoder.arch_args,
        *head_args,
        *("--num-classes", str(header.num_classes), "--classification-head-name", f"{header.task}_head"),
        *(() if encoder.restore_file is None else ("--finetune-from-model", str(encoder.restore_file))),
        *("--batch-size", str(values.batch_size), "--required-batch-size-multiple", "1", "--num-workers", "0"),
        *("--distributed-world-size", "1"),  # fairseq would take all GPUs there are, and the batch times as large
        *("--optimizer", "adam", "--adam-betas", f"(0.9, {values.adam_beta2})", "--adam-eps", str(values.adam_eps)),
        *("--weight-decay", str(values.weight_decay), "--clip-norm", str(values.clip_norm)),
        *("--lr-scheduler", "polynomial_decay", "--lr", str(values.lr)),
        *("--total-num-update", str(total), "--warmup-updates", str(warmup)),
        *("--max-epoch", str(values.max_epoch), "--seed", str(seed)),
        *("--save-dir", str(save_dir), "--no-epoch-checkpoints"),
        *("--best-checkpoint-metric", header.main_metric, "--maximize-best-checkpoint-metric"),
        *("--no-progress-bar", "--log-format", "simple", "--log-interval", "10"),
        *(["--regression-target"] if header.regression else ()),
        *words,
    ]


def parse_recipe_options(words: Sequence[str]) -> argparse.Namespace:
    """Parse the extra arguments that the recipe depends on: those that set the number of updates, and frozen or not.

    Raises:
        UsageError: If one has no positive whole number.
    """
    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False, exit_on_error=False)
    parser.add_argument("--batch-size", "--max-sentences", type=int)
    parser.add_argument("--max-epoch", type=int)
    parser.add_argument("--update-freq", type=int)
    parser.add_argument("--distributed-world-size", type=int)
    parser.add_argument("--freeze-backbone", action="store_true")
    parser.add_argument("--keep-head", action="store_true")
    try:
        found = parser.parse_known_args(list(words))[0]
    except argparse.ArgumentError as error:
        raise UsageError(f"{error}: the extra arguments; give a whole number") from None
    for name in ("batch_size", "max_epoch", "update_freq", "distributed_world_size"):
        value = getattr(found, name)
        if value is not None and value < 1:
            raise UsageError(f"not a positive number: --{name.replace('_', '-')} {value}; correct it")
    return found
