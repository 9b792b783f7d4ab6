"""Where a run's random numbers come from.

Everything random is a function of the run's seed and of a place in the run, so that nothing about random numbers has to
be saved (see `vision.training.resume`):

- the initial weights: of the seed (`seed_run`);
- order and augmentation of the images: of seed, epoch and position in it (`vision.data.sampling`), with any number of
  loading processes;
- dropout, stochastic depth, mixup and random erasing: of seed, step and process (`seed_step`).
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from timm.utils import random_seed

__all__ = ["seed_run", "seed_step"]


def seed_run(seed: int) -> None:
    """Seed the generators of Python, numpy and torch for what happens before the first step, on all processes alike."""
    random_seed(seed)


def seed_step(seed: int, step: Sequence[int], rank: int) -> None:
    """Seed the generators of Python, numpy and torch for one step.

    Args:
        seed: The run's seed.
        step: Which step it is: epoch and step in it, or the number of updates before it.
        rank: The process.
    """
    random_seed(int(np.random.SeedSequence([seed, *step, rank]).generate_state(1)[0]))
