"""Checks before training starts: mistakes that would otherwise show hours later, in one process, or never."""

from __future__ import annotations

import importlib.util
import logging
import os
import shutil
from pathlib import Path
from typing import Any

import torch

from sot_base.atomic import atomic_file, remove_unfinished
from sot_base.errors import UsageError
from sot_fairseq.fairseq_patches.checkpoint_config import check_literals
from sot_fairseq.fairseq_patches.restart import LAST, find_restart
from sot_fairseq.fairseq_patches.safe_loading import read_checked_checkpoint

__all__ = ["DESCRIPTION_FILES", "check_best_metric", "check_run", "metrics_of"]

DESCRIPTION_FILES = ("input0/dict.txt", "label/dict.txt", "preprocess.json", "tokenizer")
logger = logging.getLogger(__name__)

FAIRSEQ_METRICS = {"loss", "nll_loss", "ppl"}


def check_run(cfg: Any) -> None:
    """Check a run as a whole, and make the folder of its checkpoints complete for later prediction.

    Args:
        cfg: The task's options, with those of the run that it refers to.

    Raises:
        UsageError: naming what is wrong.
    """
    check_literals(cfg._get_root())
    check_processes(cfg.distributed_world_size)
    check_precision(cfg)
    if cfg.freeze_backbone and cfg.train_layers is not None:
        raise UsageError("--freeze-backbone is --train-layers 0: the command line; leave one out")
    if cfg.restore_file == LAST:
        restart, reason = find_restart(cfg.save_dir)
        if restart is not None and reason:
            logger.warning("%s: resuming from %s; to start from scratch, give another --save-dir", reason, restart)
    for flag, path in (("--restore-file", cfg.restore_file), ("--finetune-from-model", cfg.finetune_from_model)):
        if path and path != LAST:
            if not os.path.isfile(path):
                raise UsageError(f"no such checkpoint: {flag} {os.path.abspath(path)}; check the path")
            read_checked_checkpoint(path)  # tells another kind of file, and a damaged one
    if cfg.maximize_best_checkpoint_metric == (cfg.best_checkpoint_metric in FAIRSEQ_METRICS):
        how = "leave out" if cfg.maximize_best_checkpoint_metric else "add"
        raise UsageError(
            f"--best-checkpoint-metric {cfg.best_checkpoint_metric} would keep the worst checkpoint; "
            f"{how} --maximize-best-checkpoint-metric"
        )
    if not cfg.no_save and (cfg.distributed_rank or 0) == 0:
        prepare_save_dir(Path(cfg.data), Path(cfg.save_dir))


def check_processes(world_size: int) -> None:
    """Refuse several processes that would train separate models.

    fairseq reads torchrun's environment only where it sees several devices; on a CPU it trains alone in each process.
    """
    started = int(os.environ.get("WORLD_SIZE", "1"))
    if started > 1 and world_size == 1:
        raise UsageError(
            f"{started} processes were started (WORLD_SIZE), each of which would train a separate model; on the CPU "
            "start each with --distributed-world-size N --distributed-rank R --distributed-init-method "
            "tcp://127.0.0.1:PORT --distributed-no-spawn --distributed-backend gloo --ddp-backend legacy_ddp"
        )


def check_precision(cfg: Any) -> None:
    """Refuse half precision where fairseq does not support it."""
    wanted = next((name for name in ("fp16", "bf16", "amp") if cfg[name]), None)
    if wanted is None:
        return
    if cfg.cpu or not torch.cuda.is_available():
        why = "with --cpu" if cfg.cpu else "where torch finds no GPU"
        raise UsageError(f"--{wanted} {why}: fairseq trains in half precision on a GPU only; leave it out")
    if cfg.tpu and importlib.util.find_spec("torch_xla") is None:
        raise UsageError(
            "--bf16 means a TPU to fairseq-train, and torch_xla is not installed; give --fp16 or --amp, or "
            "common.bf16=true to fairseq-hydra-train"
        )


def check_best_metric(name: str, metrics: set[str], criterion: str) -> None:
    """Refuse a ``--best-checkpoint-metric`` that validation will not compute."""
    known = metrics | FAIRSEQ_METRICS
    if name not in known:
        raise UsageError(
            f"--best-checkpoint-metric {name} is not computed by --criterion {criterion}; "
            f"give one of {', '.join(sorted(known))}"
        )


def metrics_of(criterion: Any) -> set[str]:
    """The metrics a criterion logs in validation; fairseq's own logs some of them on request."""
    if hasattr(criterion, "metric_names"):
        return set(criterion.metric_names)
    flags = {
        "report_mcc": ("mcc",),
        "report_acc_and_f1": ("acc_and_f1", "f1"),
        "report_pearson_and_spearman": ("pearson_and_spearman", "pearson", "spearman"),
    }
    names = {name for flag, names in flags.items() if getattr(criterion, flag, False) for name in names}
    return names if getattr(criterion, "regression_target", False) else names | {"accuracy"}


def prepare_save_dir(data: Path, save_dir: Path) -> None:
    """Remove unfinished files of a killed run, and copy dictionaries, label names and tokenizer beside the checkpoints.

    The folder then predicts on its own. The copies are ordinary files, whatever the rights of the data's.
    """
    for folder in (save_dir, *(save_dir / name for name in ("input0", "label", "tokenizer"))):
        remove_unfinished(folder)
    if data.resolve() == save_dir.resolve():
        return
    for name in DESCRIPTION_FILES:
        source = data / name
        for file in sorted(source.iterdir()) if source.is_dir() else [source]:
            if file.is_file():
                with atomic_file(save_dir / file.relative_to(data)) as temporary:
                    shutil.copyfile(file, temporary)
