"""Put a trainer together: loader, task, optimizer, schedule; and let it go on from a checkpoint."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from typing import Any

from timm.data.random_erasing import RandomErasing
from timm.models import clean_state_dict
from timm.scheduler import create_scheduler_v2, scheduler_kwargs

from sot_base.errors import UsageError
from vision.data import AnyBatchMixup, BadImages, create_train_loader
from vision.token_label.mixup import TokenLabelMixup
from vision.training.batch_norm import synchronize_batch_norm
from vision.training.session import Session
from vision.training.task import HeadTask, create_optimizer
from vision.training.token_label_loss import TokenLabelLoss
from vision.training.token_label_task import TokenLabelTask
from vision.training.trainer import Progress, Trainer

__all__ = ["create_trainer"]


def create_trainer(session: Session, progress: Progress) -> Trainer:
    """Build what trains a session's model, wrapped for compilation and several processes.

    Args:
        session: Options, data and model.
        progress: Is set to where the session's checkpoint stands.

    Returns:
        The trainer.

    Raises:
        UsageError: for options that timm refuses, or a checkpoint of another set-up.
    """
    args, device = session.args, session.device
    mixing = args.mixup > 0 or args.cutmix > 0 or args.cutmix_minmax is not None
    if args.world_size > 1 and args.sync_bn:
        synchronize_batch_norm(session.model, device)
    labeling = session.token_labeling
    criterion = {"smoothing": args.smoothing, "soft_targets": mixing}
    if labeling is not None:
        criterion = TokenLabelLoss(args.dense_weight, args.cls_weight, args.ground_truth)
    task = (HeadTask if labeling is None else TokenLabelTask)(
        session.model,
        criterion,
        device,
        freeze_backbone=args.freeze_backbone,
        describe=lambda: {
            **session.describe(),
            "progress": progress.to_dict(),
            "amp_scaler": session.scaler.state_dict(),
        },
    )
    with _refusals_as_usage_errors():
        loader = _create_loader(session)
        optimizer = create_optimizer(
            session.model,
            args.head_lr_scale,
            opt=args.opt,
            lr=args.lr,
            weight_decay=args.weight_decay,
            momentum=args.momentum,
            layer_decay=args.layer_decay,
            **args.opt_kwargs,
        )
    if getattr(optimizer, "is_second_order", False):
        raise UsageError(f"--opt {args.opt} needs second derivatives, which are not computed here; give another --opt")
    if args.model_ema:
        task.setup_ema(decay=args.model_ema_decay, use_warmup=args.model_ema_warmup)
    if session.checkpoint is not None:
        _restore(session, session.checkpoint, task, optimizer, progress)
    if args.compile:
        task.compile()
    if args.world_size > 1:
        task.prepare_distributed(device_ids=[device] if device.type == "cuda" else None)
    trainer = Trainer(
        task,
        loader,
        optimizer,
        scaler=session.scaler,
        autocast=session.autocast,
        make_targets=None if labeling is None or (mixing and labeling.maps is None) else labeling.targets,
        mixup=_create_mixup(session) if mixing else None,
        erase=RandomErasing(args.reprob, mode=args.remode, max_count=args.recount, device=device)
        if args.reprob
        else None,
        batch_size=args.batch_size,
        accum_steps=args.grad_accum_steps,
        clip_grad=args.clip_grad,
        clip_mode=args.clip_mode,
        max_updates=args.max_steps,
        seed=args.seed,
        rank=args.rank,
        memory_format=session.memory_format,
        log_interval=args.log_interval,
    )
    schedule = {**scheduler_kwargs(args), "step_on_epochs": False, "updates_per_epoch": trainer.updates_per_epoch}
    with _refusals_as_usage_errors():
        trainer.scheduler, _ = create_scheduler_v2(optimizer, **schedule)
    trainer.scheduler.step_update(progress.updates)
    return trainer


@contextlib.contextmanager
def _refusals_as_usage_errors() -> Iterator[None]:
    try:
        yield
    except UsageError:
        raise
    except (ValueError, TypeError) as error:
        raise UsageError(f"timm refuses the options: {' '.join(str(error).split())}; see --help") from error


def _create_loader(session: Session) -> Any:
    args = session.args
    return create_train_loader(
        session.train_set,
        session.data_config,
        args.batch_size,
        seed=args.seed,
        rank=args.rank,
        world_size=args.world_size,
        num_repeats=args.aug_repeats,
        workers=args.workers,
        device=session.device,
        bad_images=BadImages(args.bad_images),
        no_aug=args.no_aug,
        train_crop_mode=args.train_crop_mode,
        scale=args.scale,
        ratio=args.ratio,
        hflip=args.hflip,
        vflip=args.vflip,
        color_jitter=args.color_jitter or None,
        auto_augment=args.aa or None,
        interpolation=args.train_interpolation,
    )


def _create_mixup(session: Session) -> AnyBatchMixup:
    args, labeling = session.args, session.token_labeling
    mixing = {
        "mixup_alpha": args.mixup,
        "cutmix_alpha": args.cutmix,
        "cutmix_minmax": args.cutmix_minmax,
        "prob": args.mixup_prob,
        "switch_prob": args.mixup_switch_prob,
        "mode": args.mixup_mode,
    }
    if labeling is not None and labeling.maps is not None:
        return TokenLabelMixup(labeling.grid, **mixing)
    return AnyBatchMixup(**mixing, label_smoothing=args.smoothing, num_classes=session.recipe["num_classes"])


def _restore(
    session: Session, checkpoint: Mapping[str, Any], task: HeadTask, optimizer: Any, progress: Progress
) -> None:
    """Set weights, averages, optimizer, loss scaler and progress to those of a checkpoint."""
    saved = Progress(**checkpoint["progress"])
    if saved.step and checkpoint["images_per_step"] != session.images_per_step:
        raise UsageError(
            f"--resume in the middle of an epoch needs the same images a step, {checkpoint['images_per_step']}, not "
            f"{session.images_per_step}: batch size times processes; or resume from the end of an epoch"
        )
    task.load_checkpoint_state(clean_state_dict(checkpoint["state_dict"]))
    if task.has_ema():
        if "state_dict_ema" not in checkpoint:
            raise UsageError("--resume: the checkpoint has no averaged weights; leave out --model-ema")
        task.load_checkpoint_state(clean_state_dict(checkpoint["state_dict_ema"]), ema=True)
    old = checkpoint["options"].get("opt", session.args.opt)
    if old != session.args.opt:
        raise UsageError(f"--resume: the checkpoint has another optimizer ({old}); give the same options")
    try:
        optimizer.load_state_dict(checkpoint["optimizer"])
    except (ValueError, KeyError) as error:
        raise UsageError(f"--resume: the checkpoint has another optimizer ({error}); give the same options") from error
    session.scaler.load_state_dict(checkpoint["amp_scaler"])
    vars(progress).update(vars(saved))
    if session.args.rank:
        progress.loss_sum, progress.images = 0.0, 0  # the first process counts for all
        progress.part_sums = dict.fromkeys(saved.part_sums, 0.0)
