"""What a training run starts from: options, device, data and model."""

from __future__ import annotations

import logging
from abc import ABC, abstractmethod
from argparse import Namespace
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar

import torch
from torch import nn

from sot_base.errors import UsageError
from vision.cli.device import default_workers, memory_format, mixed_precision
from vision.cli.resolve_options import plain_options
from vision.cli.run_files import read_rows
from vision.data import BadImages
from vision.models.weights.read import read_checkpoint
from vision.training.batch_norm import synchronize_batch_norm
from vision.training.find_run import find_resume
from vision.training.progress import Progress
from vision.training.saver import Saver
from vision.training.task import Task

__all__ = ["Session"]

_logger = logging.getLogger(__name__)

_DEFAULTS = {  # of options that some commands lack
    "cooldown_epochs": 0,
    "head_lr_scale": 1.0,
    "momentum": 0.9,
    "opt_kwargs": {},
    "grad_accum_steps": 1,
    "clip_mode": "norm",
    "model_ema": False,
    "sync_bn": True,
    "checkpoint_hist": 1,
    "tensorboard": False,
    "patience": None,
}


def _read_first(files: Sequence[Path]) -> tuple[Path | None, dict[str, Any] | None]:
    """The first checkpoint that is whole; a warning names those that are not.

    Raises:
        UsageError: if the last one is not whole either.
    """
    for file in files[:-1]:
        try:
            return file, read_checkpoint(file)
        except UsageError as error:
            _logger.warning(f"not resumed from: {error}")
    return (files[-1], read_checkpoint(files[-1])) if files else (None, None)


class Session(ABC):
    """The parts of a run before its first step. Each kind of training is a subclass, which opens data and model.

    All else is the same for every kind: `vision.training.build_trainer`, `vision.training.run`.

    Args:
        args: The resolved options.
        device: Where to compute.

    Attributes:
        unit: What the run counts in, and its log with it: ``epoch`` or ``step``.
        metric: The metric that chooses the best checkpoint; larger is better.
        saver_class: How checkpoints are kept.
        options: The options, with defaults for those that the command lacks.
        resumed: The checkpoint file to continue from, or None.
        checkpoint: Its content, or None.
        autocast: The context of mixed precision.
        scaler: The loss scaler.
        memory_format: Layout of images and convolutions.
        model: The model, on the device.
    """

    unit: ClassVar[str] = "epoch"
    metric: ClassVar[str]
    saver_class: ClassVar[type[Saver]] = Saver
    model: nn.Module

    def __init__(self, args: Namespace, device: torch.device) -> None:
        self.args, self.device = args, device
        self.options = Namespace(**{**_DEFAULTS, **vars(args)})
        self.resumed, self.checkpoint = _read_first(find_resume(args))
        self.autocast, self.scaler = mixed_precision(device, args.amp, args.amp_dtype)
        self.memory_format = memory_format(args.channels_last)

    def place_model(self, model: nn.Module) -> None:
        """Move the model to the device; over several processes BatchNorm then uses the statistics of all."""
        self.model = model.to(device=self.device, memory_format=self.memory_format)
        if self.args.world_size > 1 and self.options.sync_bn:
            synchronize_batch_norm(self.model, self.device)

    @property
    def images_per_step(self) -> int:
        """Images of a batch over all processes."""
        return self.args.batch_size * self.args.world_size

    def loading(self) -> dict[str, Any]:
        """The arguments of all loaders: how batches are made, and shared out among the processes."""
        args, bad_images = self.args, BadImages(self.args.bad_images)
        workers = default_workers(args.workers, args.world_size)
        shares = {"rank": args.rank, "world_size": args.world_size}
        return {**shares, "workers": workers, "device": self.device, "bad_images": bad_images}

    def describe(self) -> dict[str, Any]:
        """The entries of a checkpoint that say what the model is and how it is trained, in plain values."""
        path = self.args.data_dir
        place = {} if path is None else {"data_path": str(Path(path).resolve())}
        return {"options": plain_options(self.args), **place, "images_per_step": self.images_per_step}

    def column(self, ema: bool = False) -> str:
        """The name of the metric in the rows of the log, of the averaged weights or of the raw ones."""
        return self.metric

    def score(self, metrics: Mapping[str, float]) -> tuple[float, str]:
        """How good an evaluation is, by the better of raw and averaged weights, and which these are: raw, ema."""
        values = {name: metrics.get(f"{lead}{self.metric}") for name, lead in (("ema", "ema_"), ("raw", ""))}
        best = max((name for name in values if values[name] is not None), key=lambda name: values[name])
        return values[best], best

    @property
    @abstractmethod
    def num_epochs(self) -> int:
        """Epochs of the run; an epoch ends with an evaluation."""

    @abstractmethod
    def create_task(self) -> Task:
        """Put the model together with its loss."""

    @abstractmethod
    def create_train_loader(self) -> Any:
        """The loader of training batches, see `vision.training.trainer.Trainer`."""

    @abstractmethod
    def create_eval_loader(self) -> Any:
        """The loader of validation images."""

    @abstractmethod
    def schedule(self) -> dict[str, Any]:
        """The options of `vision.training.schedule.create_schedule`, in the run's units."""

    @abstractmethod
    def evaluate(self, model: nn.Module, loader: Any) -> dict[str, float]:
        """The metrics of a model over the validation images of all processes."""

    @abstractmethod
    def log_row(
        self, progress: Progress, train: Mapping[str, float], metrics: Mapping[str, float], lr: float
    ) -> dict[str, Any]:
        """The row of the log for the end of an epoch; its first column counts the run's units."""

    @abstractmethod
    def dry_run(self) -> None:
        """Print the resolved options and the loss of the first images."""

    def read_progress(self) -> Progress:
        """How far the run of the checkpoint has come.

        Raises:
            UsageError: in the middle of an epoch of other batches.
        """
        progress = Progress.from_saved(self.checkpoint["progress"], str(self.resumed))
        rows = progress.history or read_rows(self.resumed.parent / "summary.csv")  # older checkpoints hold no history
        try:
            progress.history = [row for row in rows if int(row["epoch"]) < progress.epoch]
        except (KeyError, TypeError, ValueError):
            where = f"{self.resumed} or summary.csv beside it"
            raise UsageError(f"a row of the log without its epoch: {where}; resume from another checkpoint") from None
        images, accumulated = self.checkpoint["images_per_step"], self.options.grad_accum_steps
        before = self.checkpoint["options"].get("grad_accum_steps", accumulated)
        if progress.step and before != accumulated:
            raise UsageError(
                f"--resume in the middle of an epoch needs the same batches an update, {before}, not {accumulated}: "
                "--grad-accum-steps; or resume from the end of an epoch"
            )
        if progress.step and images != self.images_per_step:
            raise UsageError(
                f"--resume in the middle of an epoch needs the same images a step, {images}, not "
                f"{self.images_per_step}: batch size times processes; or resume from the end of an epoch"
            )
        return progress
