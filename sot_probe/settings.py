"""The settings of a head's training, which a command line reads without torch."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["TrainingSettings"]


@dataclass(frozen=True)
class TrainingSettings:
    """How a head is trained.

    Args:
        lr: Peak learning rate (> 0), after a warm-up over 6 % of the updates; then it decays linearly to 0.
        batch_size: Rows in a batch (> 0).
        epochs: Number of epochs (> 0).
        weight_decay: Decoupled weight decay (>= 0), of all parameters.
        encoder_lr_scale: Learning rate of trained layers of the encoder, as a multiple of ``lr`` (> 0).
    """

    lr: float = 1e-3
    batch_size: int = 32
    epochs: int = 8
    weight_decay: float = 0.1
    encoder_lr_scale: float = 0.05
