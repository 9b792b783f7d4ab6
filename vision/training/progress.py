"""How far a run has come, as a checkpoint holds it."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Annotated, Any

from msgspec import Meta

from sot_base.errors import UsageError
from sot_base.schema import of_type

__all__ = ["Progress"]

Count = Annotated[int, Meta(ge=0, le=2**53)]


@dataclass
class Progress:
    """How far a run has come, in plain values.

    An epoch ends with its evaluation. In a run that counts in steps, an epoch is what lies between two evaluations.

    Attributes:
        epoch: The epoch in progress, or the next one.
        step: Batches done in it, on each process.
        updates: Updates done in all.
        loss_sum: Sum of the losses of this process's images in this epoch.
        part_sums: The same of each part of the loss, by name, where the task tells them.
        images: Those images.
        bad_images: Images of this process in this epoch that could not be read.
        skipped: Updates of this epoch that mixed precision skipped.
        history: The rows of the log: the numbers of each evaluation.
        best: The best evaluation so far; None before the first one.
        stale: Evaluations since then.
    """

    epoch: Count = 0
    step: Count = 0
    updates: Count = 0
    loss_sum: float = 0.0
    images: Count = 0
    skipped: Count = 0
    bad_images: Count = 0
    part_sums: dict[str, float] = dataclasses.field(default_factory=dict)
    history: list[dict[str, Any]] = dataclasses.field(default_factory=list)
    best: float | None = None
    stale: Count = 0

    @classmethod
    def from_saved(cls, values: Any, where: str) -> Progress:
        """Read what a checkpoint holds.

        Args:
            values: The attributes by name.
            where: The file, for messages.

        Raises:
            UsageError: naming the attribute that is not what it should be.
        """
        remedy = "the checkpoint is damaged, or not of this version: resume from another one"
        progress = of_type(values, cls, f"progress of {where}", remedy)
        for name, value in (entry for row in progress.history for entry in row.items()):
            try:
                float(value)
            except (TypeError, ValueError):
                raise UsageError(
                    f"{name} in a row of the log is {str(value)[:20]!r}, not a number: progress of {where}; {remedy}"
                ) from None
        return progress

    def note_evaluation(self, value: float) -> None:
        """Count how long the metric has not been better."""
        better = self.best is None or value > self.best
        self.best, self.stale = (value, 0) if better else (self.best, self.stale + 1)

    def next_epoch(self) -> None:
        """Start the next epoch."""
        self.epoch, self.step, self.skipped = self.epoch + 1, 0, 0
        self.clear_sums()

    def clear_sums(self) -> None:
        """Set the sums over this process's images to 0."""
        self.loss_sum, self.images, self.bad_images = 0.0, 0, 0
        self.part_sums = dict.fromkeys(self.part_sums, 0.0)

    @property
    def mean_loss(self) -> float:
        """Mean loss of this process's images in this epoch."""
        return self.loss_sum / max(1, self.images)
