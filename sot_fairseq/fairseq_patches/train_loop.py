"""fairseq's training loop: it resumes from an intact checkpoint, knows when a run is finished, and stops on a signal.

The loop's functions are globals of ``fairseq_cli.train``, or of ``__main__`` where that module was started itself.
"""

from __future__ import annotations

import copy
import math
import sys
from collections.abc import Iterator
from types import ModuleType
from typing import Any

import torch.distributed as dist
from fairseq import checkpoint_utils
from omegaconf import open_dict

from sot_fairseq.fairseq_patches.restart import LAST, find_restart
from sot_fairseq.fairseq_patches.stop_signals import signals

__all__ = ["early_stopping_state", "patch_train_loop", "restore_early_stopping"]


def patch_train_loop() -> None:
    """Let the next training resume, finish and stop as described above."""
    signals.prepare()
    _go_on_from_whole_checkpoints()
    for module in _loops():
        if not getattr(module.train, "knows_the_end", False):
            _know_the_end(module)
            _stop_on_signals(module)


def _loops() -> Iterator[ModuleType]:
    for name in ("fairseq_cli.train", "__main__"):
        module = sys.modules.get(name)
        if module is not None and hasattr(module, "validate_and_save") and hasattr(module, "should_stop_early"):
            yield module


def _go_on_from_whole_checkpoints() -> None:
    """Where ``checkpoint_last.pt`` is absent or damaged, as after a kill, fairseq would start from scratch, or fail."""
    stock = checkpoint_utils.load_checkpoint
    if getattr(stock, "finds_whole_ones", False):
        return

    def load_checkpoint(cfg: Any, trainer: Any, **passthrough_args: Any) -> Any:
        _forget_other_trainings()
        if cfg.restore_file == LAST and not trainer.checkpoint_suffix:
            restart, reason = find_restart(cfg.save_dir)
            if restart is not None and reason:
                cfg = copy.deepcopy(cfg)
                with open_dict(cfg):
                    cfg.restore_file, cfg.finetune_from_model = str(restart.path), None
        return stock(cfg, trainer, **passthrough_args)

    load_checkpoint.finds_whole_ones = True  # type: ignore[attr-defined]
    checkpoint_utils.load_checkpoint = load_checkpoint


def _forget_other_trainings() -> None:
    """Fairseq keeps the best result in attributes of functions, where the next training of a process finds them."""
    for function in (checkpoint_utils.save_checkpoint, *(module.should_stop_early for module in _loops())):
        for name in ("best", "num_runs"):
            if hasattr(function, name):
                delattr(function, name)


def _know_the_end(module: ModuleType) -> None:
    """A finished run would train for another update, or until ``--patience`` runs out again."""
    stock = module.train

    def train(cfg: Any, trainer: Any, task: Any, epoch_itr: Any) -> tuple[list[float | None], bool]:
        reason = _finished(cfg, trainer, module.should_stop_early)
        if reason:
            module.logger.info("nothing is left to train: %s", reason)
            return [None], True
        signals.install()
        outcome: tuple[list[float | None], bool] = stock(cfg, trainer, task, epoch_itr)
        return outcome

    train.knows_the_end = True  # type: ignore[attr-defined]
    module.train = train


def _finished(cfg: Any, trainer: Any, should_stop_early: Any) -> str | None:
    updates, limit = trainer.get_num_updates(), cfg.optimization.max_update or math.inf
    hours, most_hours = trainer.cumulative_training_time() / 3600, cfg.optimization.stop_time_hours
    idle, patience = getattr(should_stop_early, "num_runs", 0), cfg.checkpoint.patience
    if updates >= limit:
        return f"{updates} updates are done, --max-update is {limit}"
    if updates and 0 < most_hours < hours:
        return f"{hours:.2f} hours are used, --stop-time-hours is {most_hours:g}"
    if 0 < patience <= idle:
        return f"no better result in {idle} validations, --patience is {patience}"
    return None


def _stop_on_signals(module: ModuleType) -> None:
    """Save and stop after the update during which a signal arrived, in all processes."""
    stock = module.validate_and_save

    def validate_and_save(
        cfg: Any, trainer: Any, task: Any, epoch_itr: Any, valid_subsets: list[str], end_of_epoch: bool
    ) -> tuple[list[float | None], bool]:
        outcome: tuple[list[float | None], bool] = stock(cfg, trainer, task, epoch_itr, valid_subsets, end_of_epoch)
        number = signals.received(trainer)
        if number:
            if getattr(trainer, "saved_updates", None) != trainer.get_num_updates():
                checkpoint_utils.save_checkpoint(cfg.checkpoint, trainer, epoch_itr, None)
            module.logger.info("stopped by signal %d at update %d", number, trainer.get_num_updates())
            _leave_the_group()
            raise SystemExit(128 + number)
        return outcome

    module.validate_and_save = validate_and_save


def _leave_the_group() -> None:
    """Wait for the other processes and end the communication: its threads may abort a process that exits before."""
    if dist.is_available() and dist.is_initialized():
        dist.barrier()
        dist.destroy_process_group()


def early_stopping_state() -> dict[str, Any]:
    """What fairseq's ``--patience`` remembers, for a checkpoint."""
    for module in _loops():
        if hasattr(module.should_stop_early, "num_runs"):
            return {"best": module.should_stop_early.best, "num_runs": module.should_stop_early.num_runs}
    return {}


def restore_early_stopping(state: dict[str, Any]) -> None:
    """The inverse of :func:`early_stopping_state`."""
    for module in _loops():
        for name, value in state.items():
            setattr(module.should_stop_early, name, value)
