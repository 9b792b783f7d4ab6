"""Early ends of a training (SIGTERM, early stopping), and when checkpoints are due."""

from __future__ import annotations

import contextlib
import os
import signal
import sys
from types import FrameType
from typing import Any, Self

import torch
from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments

__all__ = ["EarlyStopping", "SaveOnTermination"]

TERMINATED = 128 + signal.SIGTERM


class EarlyStopping(TrainerCallback):
    """Stop when the metric of the best model has not improved for some evaluations.

    What counts is the history of evaluations, which checkpoints hold: a resumed run stops where it would have stopped
    without a break, and one that had stopped does not train on.

    Args:
        patience: Evaluations without an improvement (> 0).
        threshold: The least difference that is an improvement (>= 0).
        metric: Its name in the evaluations, with ``eval_``.
        greater_is_better: Whether larger values are better.
    """

    def __init__(self, patience: int, threshold: float, metric: str, greater_is_better: bool) -> None:
        self.patience, self.threshold = patience, threshold
        self.metric, self.sign = metric, 1.0 if greater_is_better else -1.0

    def is_over(self, state: TrainerState) -> bool:
        """Whether the last `patience` evaluations brought no improvement."""
        best, stale = float("-inf"), 0
        for entry in state.log_history:
            if self.metric in entry:
                value = self.sign * entry[self.metric]
                stale = 0 if value - best > self.threshold else stale + 1
                best = max(best, value)
        return stale >= self.patience

    def on_evaluate(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> TrainerControl:
        """Stop the training if it is over."""
        if self.is_over(state):
            control.should_training_stop = True
        return control


class SaveOnTermination(TrainerCallback):
    """On SIGTERM, which clusters send before a time limit, save a checkpoint and end with status 143.

    A context: within it SIGTERM waits for the end of a step in training, and ends the process at once elsewhere. A
    second one ends it at once everywhere.

    Checkpoints that are due in the last step of an epoch are written after the evaluation at the end of the epoch, so
    that a run resumed from one lacks none of its evaluations.
    """

    def __init__(self) -> None:
        self.training = self.wanted = self.due = False
        self.previous: Any = signal.SIG_DFL
        self.process = os.getpid()

    def __enter__(self) -> Self:
        with contextlib.suppress(ValueError):  # not in the main thread: signals are not ours
            self.previous = signal.signal(signal.SIGTERM, self._terminate)
        return self

    def __exit__(self, *error: object) -> None:
        with contextlib.suppress(ValueError):
            signal.signal(signal.SIGTERM, self.previous)

    def _terminate(self, number: int, frame: FrameType | None) -> None:
        if os.getpid() != self.process:  # a process forked from this one has nothing to save
            os._exit(TERMINATED)
        if self.wanted or not self.training:
            sys.exit(TERMINATED)
        self.wanted = True

    def on_train_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Let SIGTERM wait for the end of a step from now on."""
        self.training = True

    def finish(self) -> None:
        """Call once the trained model is saved."""
        self.training = False
        if self.wanted:
            sys.stderr.write("terminated: the training is finished and its model saved\n")
            sys.exit(TERMINATED)

    def on_step_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> TrainerControl:
        """Save if due, but not between an epoch and its evaluation."""
        control.should_save = control.should_save or self._wanted_anywhere(args)
        if control.should_save and state.epoch == int(state.epoch or 0):
            self.due, control.should_save = True, False
        return control

    def on_epoch_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> TrainerControl:
        """Save what was due in the epoch's last step."""
        control.should_save = control.should_save or self.due or self._wanted_anywhere(args)
        self.due = False
        return control

    def on_save(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        """End the process if a signal asked for it."""
        if not self.wanted:
            return
        if args.process_index == 0:
            sys.stderr.write(
                f"terminated: saved {args.output_dir}/checkpoint-{state.global_step}; resume with "
                "--resume_from_checkpoint last\n"
            )
        sys.exit(TERMINATED)

    def _wanted_anywhere(self, args: TrainingArguments) -> bool:
        """Whether SIGTERM has come, to any of several processes: all of them save the same step."""
        if args.world_size > 1:
            wanted = torch.tensor(int(self.wanted), device=args.device)
            torch.distributed.all_reduce(wanted, op=torch.distributed.ReduceOp.MAX)
            self.wanted = bool(wanted)
        return self.wanted
