"""Train UperNet on a vision transformer for semantic segmentation.

python vision/segment/train.py DIR --model lvvit_s --backbone-checkpoint lvvit_s-26M-384-84.4.pth.tar --amp
python vision/segment/train.py DIR --num-classes 4 --no-reduce-zero-label --crop-size 256 --steps 20000
torchrun --nproc_per_node 8 vision/segment/train.py DIR --model lvvit_m -b 2 --amp        # several GPUs
"""

from __future__ import annotations

import logging
import sys
from argparse import Namespace
from collections.abc import Sequence
from pathlib import Path
from typing import Any

if __package__ in (None, ""):  # run as a file: the import root is the repository, not this folder
    sys.path[0] = str(Path(__file__).resolve().parents[2])

import torch
import torch.distributed as dist
from timm.scheduler import create_scheduler_v2
from torch.nn.parallel import DistributedDataParallel

from sot_base.errors import UsageError, run_main
from vision.cli.config_file import parse_args
from vision.cli.device import default_workers, init_device, memory_format, mixed_precision
from vision.cli.resolve_options import choose_folder, find_resume, plain_options
from vision.cli.run_files import write_options, write_rows
from vision.data import BadImages
from vision.evaluation.dry_run import print_dry_run
from vision.models.weights.read import load_state, read_checkpoint
from vision.segment.dataset import eval_loader, train_loader
from vision.segment.evaluate import evaluate, inference_options
from vision.segment.loss import SegmentationLoss
from vision.segment.metrics import ConfusionMatrix
from vision.segment.options import check_options, train_parser
from vision.segment.run_state import RunState, save_checkpoint
from vision.segment.session import Session, first_loss, open_session
from vision.segment.trainer import Trainer
from vision.training.batch_norm import synchronize_batch_norm
from vision.training.finite import NonFiniteError, check_parameters
from vision.training.task import create_optimizer

_logger = logging.getLogger("vision.segment.train")


def main(argv: Sequence[str] | None = None) -> None:
    """Parse the command line and train."""
    args = parse_args(train_parser(), argv)
    try:
        result = run(args)
        if result is not None:
            best, folder = result
            name = "model_best" if best >= 0 else "last"
            text = f"best mIoU: {best:.2f} %" if best >= 0 else "stopped before the first validation"
            print(f"{text}, checkpoint {folder / name}.pth.tar")  # noqa: T201
    finally:
        if dist.is_initialized():
            dist.destroy_process_group()


def run(args: Namespace) -> tuple[float, Path] | None:
    """Train as the options say.

    Returns:
        The best mIoU in percent (-1 before the first validation) and the run's folder; None for a dry run and on every
        process but the first.
    """
    check_options(args)
    device = init_device(args)
    path = find_resume(args)
    session = open_session(args, device, None if path is None else read_checkpoint(path))
    if args.dry_run:
        loss = first_loss(session)
        if args.rank == 0:
            facts = {"world_size": args.world_size, "recipe": session.recipe, "data": session.data}
            print_dry_run(plain_options(args), facts, *loss)
        return None
    trainer, state = _create_trainer(session)
    folder = None
    if args.rank == 0:
        folder = choose_folder(args)
        write_options(folder, plain_options(args))
        _logger.info(f"output: {folder}")
    try:
        _train(session, trainer, state, folder)
    except NonFiniteError as error:
        last = "none yet" if folder is None or not (folder / "last.pth.tar").exists() else folder / "last.pth.tar"
        raise NonFiniteError(f"{error}; the last good checkpoint: {last}") from error
    return None if folder is None else (state.best, folder)


def _create_trainer(session: Session) -> tuple[Trainer, RunState]:
    args, model, device = session.args, session.model, session.device
    autocast, scaler = mixed_precision(device, args.amp, args.amp_dtype)
    if args.world_size > 1:
        synchronize_batch_norm(model, device)
    try:
        optimizer = create_optimizer(
            model, opt=args.opt, lr=args.lr, weight_decay=args.weight_decay, layer_decay=args.layer_decay
        )
    except (ValueError, TypeError) as error:
        raise UsageError(f"timm refuses the options: {' '.join(str(error).split())}; see --help") from error
    state = RunState()
    if session.checkpoint is not None:
        state = RunState(**session.checkpoint["state"])
        if args.rank:
            state.loss_sum, state.loss_steps, state.bad_images = 0.0, 0, 0  # the first process counts for all
        load_state(model, session.checkpoint["state_dict"], "--resume")
        _restore(optimizer, session.checkpoint["optimizer"])
        if session.checkpoint["amp_scaler"]:  # of a run without one it is empty
            scaler.load_state_dict(session.checkpoint["amp_scaler"])
    scheduler, _ = create_scheduler_v2(
        optimizer,
        sched=args.sched,
        num_epochs=args.steps,
        warmup_epochs=args.warmup_steps,
        warmup_lr=args.lr * 1e-6,
        min_lr=args.min_lr,
        decay_rate=args.poly_power,
        step_on_epochs=False,
        updates_per_epoch=1,
    )
    wrapped: Any = torch.compile(model) if args.compile else model
    if args.world_size > 1:
        wrapped = DistributedDataParallel(wrapped, device_ids=[device] if device.type == "cuda" else None)
    trainer = Trainer(
        model,
        wrapped,
        SegmentationLoss(args.ignore_index, args.aux_weight, args.dice_weight),
        optimizer,
        scheduler,
        scaler,
        autocast,
        session.data["images"],
        args.seed,
        args.rank,
        args.clip_grad,
        memory_format(args.channels_last),
        args.log_interval,
    )
    return trainer, state


def _restore(optimizer: torch.optim.Optimizer, saved: dict[str, Any]) -> None:
    """Take over an optimizer's state; learning rate and weight decay stay those that the options say."""
    given = [{name: group[name] for name in ("lr", "weight_decay")} for group in optimizer.param_groups]
    optimizer.load_state_dict(saved)
    for group, values in zip(optimizer.param_groups, given, strict=True):
        group.update(values, initial_lr=values["lr"])


def _train(session: Session, trainer: Trainer, state: RunState, folder: Path | None) -> None:
    args = session.args
    last = min(args.steps, args.max_steps or args.steps)
    workers = default_workers(args.workers, args.world_size)
    loader = train_loader(
        session.train_set,
        args.batch_size,
        range(state.step, max(last, state.step)),
        args.seed,
        args.rank,
        args.world_size,
        workers,
        session.device,
        BadImages(args.bad_images),
    )

    def validate_if_due() -> bool:
        due = state.step > 0 and (state.step % args.val_steps == 0 or state.step == args.steps)
        if not due or (state.history and state.history[-1]["step"] == state.step):
            return False
        check_parameters(trainer.model)
        try:
            _validate(session, trainer, state, workers, folder)
        except UsageError:  # bad files: the training is not lost, and --resume validates first
            if folder is not None:
                save_checkpoint(folder / "last.pth.tar", _content(session, trainer, state))
            raise
        return True

    trainer.scheduler.step_update(state.step)
    if validate_if_due() and folder is not None:
        save_checkpoint(folder / "last.pth.tar", _content(session, trainer, state))
    for _ in trainer.steps(loader, state, last):
        validated = validate_if_due()
        stops = state.step == last or (args.checkpoint_steps and state.step % args.checkpoint_steps == 0)
        if folder is not None and (validated or stops):
            check_parameters(trainer.model)
            save_checkpoint(folder / "last.pth.tar", _content(session, trainer, state))


def _validate(session: Session, trainer: Trainer, state: RunState, workers: int, folder: Path | None) -> None:
    """Measure the weights, keep them if they are the best, and write the log."""
    args, bad_images = session.args, BadImages(session.args.bad_images)
    loader = eval_loader(session.val_set, args.rank, args.world_size, workers, session.device, bad_images)
    inference = inference_options(args, args.crop_size, args.short_side, trainer.autocast)
    confusion = ConfusionMatrix(args.num_classes, args.ignore_index, session.device)
    evaluate(trainer.model, loader, inference, confusion, session.data["images"], trainer.memory_format)
    confusion.require_pixels(session.val_set.source.where)
    metrics = confusion.compute()
    loss = _collect(state, session.device)
    row = {"step": state.step, "lr": trainer.lr, "train_loss": loss, "bad_images": state.bad_images, **metrics}
    state.history.append(row)
    state.loss_sum, state.loss_steps, state.bad_images = 0.0, 0, 0
    is_best = metrics["miou"] > state.best
    state.best = max(state.best, metrics["miou"])
    _logger.info(
        f"step {state.step}: train loss {loss:.4f}, mIoU {metrics['miou']:.2f} %, "
        f"pixel accuracy {metrics['pixel_accuracy']:.2f} %, mean accuracy {metrics['mean_accuracy']:.2f} %"
    )
    if folder is not None:
        write_rows(folder / "summary.csv", state.history)
        if is_best:
            content = _content(session, trainer, state)
            for name in ("optimizer", "amp_scaler", "state"):
                del content[name]
            save_checkpoint(folder / "model_best.pth.tar", {**content, "metrics": metrics, "step": state.step})


def _collect(state: RunState, device: torch.device) -> float:
    """The mean loss since the last validation, over all processes; ``state`` has their bad images then."""
    sums = torch.tensor([state.loss_sum, state.loss_steps, state.bad_images], dtype=torch.float64, device=device)
    if dist.is_initialized():
        dist.all_reduce(sums)
    loss_sum, steps, bad = sums.tolist()
    if not steps:
        raise UsageError("nothing to learn: no image of any step can be read; mend the files")
    state.bad_images = int(bad)
    return loss_sum / steps


def _content(session: Session, trainer: Trainer, state: RunState) -> dict[str, Any]:
    return {
        **session.describe(),
        "state_dict": trainer.model.state_dict(),
        "optimizer": trainer.optimizer.state_dict(),
        "amp_scaler": trainer.scaler.state_dict(),
        "state": state.to_dict(),
    }


if __name__ == "__main__":
    run_main(main)
