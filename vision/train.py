"""Train an image classifier; without arguments, the digits demonstration.

python vision/train.py                                                            # digits, MGCrP against CLS
python vision/train.py DIR --model sot_micro --img-size 32 --epochs 5             # DIR/train/<class>, DIR/val/<class>
python vision/train.py DIR --config sot_tiny -b 128                               # vision/configs/sot_tiny.yaml
torchrun --nproc_per_node 8 vision/train.py DIR --config sot_small -b 128 --amp   # several GPUs
python vision/train.py DIR --config lvvit_s --token-label-data LABELS             # a label for every patch
python vision/train.py --config hvt-ti-1.json --data-set CIFAR --data-path DIR    # HVT's spellings
"""

from __future__ import annotations

import logging
import math
import sys
from argparse import Namespace
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

if __package__ in (None, ""):  # run as a file: the import root is the repository, not this folder
    sys.path[0] = str(Path(__file__).resolve().parents[1])

import torch.distributed as dist
from timm.utils.distributed import is_distributed_env
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from sot_base.errors import UsageError, run_main
from vision.cli.config_file import parse_args
from vision.cli.options import train_parser
from vision.cli.resolve_options import choose_folder, find_resume, plain_options
from vision.cli.run_files import RunLog, draw_curves, write_options
from vision.data import BadImages, ImageSet, create_eval_loader
from vision.evaluation.dry_run import first_loss, print_dry_run
from vision.evaluation.metrics import ClassEvaluator
from vision.models.weights.read import Saver, read_checkpoint
from vision.training.build_trainer import create_trainer
from vision.training.demo import run_demo
from vision.training.epoch import evaluate, train_one_epoch
from vision.training.finite import NonFiniteError, check_parameters
from vision.training.session import Session, open_session
from vision.training.trainer import Progress, Trainer
from vision.validate import validate, validate_parser

_logger = logging.getLogger("vision.train")


@dataclass(frozen=True)
class Result:
    """What a run ends with: the best top-1 accuracy in percent, the run's folder and its best checkpoint."""

    top1: float
    folder: Path
    checkpoint: Path


class RunFiles:
    """The files of a run, on the first process; on the others it does nothing.

    Args:
        session: The run.
        trainer: Its trainer.
        start_epoch: The first epoch to come.
        name: Name of a new folder; None: from model and data.
    """

    def __init__(self, session: Session, trainer: Trainer, start_epoch: int, name: str | None) -> None:
        self.folder: Path | None = None
        if session.args.rank:
            return
        self.folder = choose_folder(session.args, name)
        self.saver = Saver(
            trainer.model,
            trainer.optimizer,
            checkpoint_dir=str(self.folder),
            recovery_dir=str(self.folder),
            max_history=session.args.checkpoint_hist,
            task=trainer.task,
        )
        if session.checkpoint is not None:
            self.saver.load_state_dict(session.checkpoint["saver"])
        write_options(self.folder, plain_options(session.args))
        self.log = RunLog(self.folder, start_epoch, session.args.tensorboard)
        _logger.info(f"output: {self.folder}")

    def save(self, epoch: int, metric: float) -> None:
        """Save the end of an epoch."""
        if self.folder is not None:
            self.saver.save_checkpoint(epoch, metric)

    def save_within_epoch(self, progress: Progress) -> None:
        """Save between two updates."""
        if self.folder is not None:
            self.saver.save_recovery(progress.epoch, progress.updates)

    def latest(self) -> str:
        """The newest checkpoint, in words."""
        if self.folder is None:
            return "in the run's folder"
        files = [file for name in ("last", "recovery-*") for file in self.folder.glob(f"{name}.pth.tar")]
        return str(max(files, key=lambda file: file.stat().st_mtime, default="none yet"))


def main(argv: Sequence[str] | None = None) -> None:
    """Parse the command line and train."""
    argv = sys.argv[1:] if argv is None else argv
    args = parse_args(train_parser(), argv)
    try:
        if args.eval:
            _validate(args)
        elif args.data_dir is None and args.dataset is None:
            if is_distributed_env():
                raise UsageError("the demonstration runs in one process; give DIR or --dataset to torchrun")
            run_demo(argv, run)
        else:
            result = run(args)
            if result is not None:
                print(f"best top-1: {result.top1:.2f} %, checkpoint {result.checkpoint}")  # noqa: T201
    finally:
        if dist.is_initialized():
            dist.destroy_process_group()


def _validate(args: Namespace) -> None:
    """What ``vision/validate.py`` does with the checkpoint of ``--resume``, of this package or a published one."""
    path = find_resume(args)
    if path is None:
        raise UsageError("--eval has no checkpoint; give it as --resume PATH")
    options = vars(parse_args(validate_parser(), []))
    shared = {name: value for name, value in vars(args).items() if name in options}
    model = None if "recipe" in read_checkpoint(path) else args.model
    validate(Namespace(**{**options, **shared, "checkpoint": str(path), "model": model}))


def run(args: Namespace, name: str | None = None) -> Result | None:
    """Train as the options say.

    Args:
        args: The options.
        name: Name of the run's folder; None: from model and data.

    Returns:
        The result; None on every process but the first one, and for a dry run.
    """
    session = open_session(args)
    if args.dry_run:
        facts = {"world_size": args.world_size, "data_config": session.data_config, "recipe": session.recipe}
        if session.token_labeling is not None:
            facts["token_labeling"] = session.token_labeling.facts()
        images = ImageSet(session.train_set.source)  # without label maps
        loss = first_loss(session.model, images, session.data_config, session.device, session.autocast)
        if args.rank == 0:
            print_dry_run(plain_options(args), facts, *loss)
        return None
    progress = Progress()
    trainer = create_trainer(session, progress)
    files = RunFiles(session, trainer, progress.epoch, name)
    trainer.after_update = partial(_save_now_and_then, files, session.model, args.checkpoint_steps)
    try:
        _train(session, trainer, progress, files)
    except NonFiniteError as error:
        raise NonFiniteError(f"{error}; the last good checkpoint: {files.latest()}") from error
    if files.folder is None:
        return None
    draw_curves({session.recipe["name"]: files.log.summary}, files.folder / "curves.png")
    return Result(files.saver.best_metric, files.folder, files.folder / "model_best.pth.tar")


def _train(session: Session, trainer: Trainer, progress: Progress, files: RunFiles) -> None:
    args = session.args
    val_loader = create_eval_loader(
        session.val_set,
        session.data_config,
        args.batch_size,
        args.rank,
        args.world_size,
        args.workers,
        session.device,
        BadImages(args.bad_images),
    )
    for epoch in range(progress.epoch, args.epochs + args.cooldown_epochs):
        if trainer.done(progress):
            break
        if trainer.mixup is not None and args.mixup_off_epoch:
            trainer.mixup.mixup_enabled = epoch < args.mixup_off_epoch
        train_metrics = train_one_epoch(trainer, progress)
        check_parameters(trainer.model)
        metrics = _evaluate_weights(session, trainer, val_loader, epoch)
        top1 = metrics.get("ema_top1", metrics["top1"])
        files.save(epoch, top1)
        if files.folder is not None:
            files.log.write(epoch, train_metrics, metrics, trainer.lr)
        shown = ", ".join(f"{key} {value:.4g}" for key, value in metrics.items())
        _logger.info(f"epoch {epoch}: train loss {train_metrics['loss']:.4f}, lr {trainer.lr:.3e}; evaluation: {shown}")


def _evaluate_weights(session: Session, trainer: Trainer, loader: Any, epoch: int) -> dict[str, float]:
    """Metrics of the weights, and under ``ema_`` of the averaged ones."""
    metrics = {}
    for ema in (False, True) if trainer.task.has_ema() else (False,):
        model = trainer.task.get_eval_model(ema=ema)
        model = model.module if isinstance(model, DistributedDataParallel) else model
        evaluator = ClassEvaluator(session.recipe["num_classes"], session.device)
        evaluate(model, loader, evaluator, session.autocast, session.memory_format)
        values = evaluator.compute(distributed=session.args.distributed)
        if not math.isfinite(values["loss"]):
            raise NonFiniteError(
                f"the evaluation's loss is {values['loss']}: epoch {epoch}, lr {trainer.lr:.3e}; "
                "lower --lr, lengthen --warmup-epochs or set --clip-grad"
            )
        metrics |= {("ema_" if ema else "") + key: value for key, value in values.items()}
    return metrics


def _save_now_and_then(files: RunFiles, model: nn.Module, interval: int, progress: Progress) -> None:
    if interval and progress.updates % interval == 0:
        check_parameters(model)
        files.save_within_epoch(progress)


if __name__ == "__main__":
    run_main(main)
