"""The file of the measurement: every run with its scores on the test rows, written after each run."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import msgspec

from sot_base.atomic import atomic_file
from sot_base.errors import UsageError
from sot_base.small_files import read_json

__all__ = ["Results", "Run", "Step", "read_results"]

MAX_BYTES = 256 * 2**20
REMEDY = "remove it, or give another --output"


class Step(msgspec.Struct):
    """The encoder before tuning or after an epoch of it.

    Attributes:
        epoch: Number of epochs of tuning.
        effective_rank: Of the centred word tokens of the test rows.
        first_share: Share of their variance in the first direction.
        probes: Metric (percent) on the test rows of heads that were trained on the frozen states.
        rank_within: The effective rank of the words minus the mean of their row, which is what MGCrP sees.
        direction_auc: Area under the ROC curve (percent) of the rows' mean word along the first direction; 50 tells
            nothing, and what is below counts as much as what is above.
    """

    epoch: int
    effective_rank: float
    first_share: float
    probes: dict[str, float]
    rank_within: float | None = None
    direction_auc: float | None = None


class Run(msgspec.Struct):
    """A fine-tuning.

    Attributes:
        words: The options of `sot_hf.run_glue`, without the files.
        parameters: Number of trained parameters.
        updates: Number of updates.
        seconds: Wall-clock time of the training.
        value: The metric (percent) on the test rows.
        auc: Area under the ROC curve (percent).
        scores: Difference of the two logits of each test row.
        steps: Its encoder before and after each epoch, if it was followed.
    """

    words: str
    parameters: int
    updates: int
    seconds: float
    value: float
    auc: float
    scores: list[float]
    steps: list[Step]


class Results(msgspec.Struct):
    """All runs.

    Attributes:
        metric: Name of the metric.
        protocol: What all runs have in common; a file is continued with the same protocol alone.
        targets: Class of each test row.
        arms: For each arm its runs by seed.
    """

    metric: str
    protocol: dict[str, Any]
    targets: list[int]
    arms: dict[str, dict[str, Run]]

    def seeds(self, *arms: str) -> list[str]:
        """The seeds that all these arms have, in numerical order."""
        found = set.intersection(*(set(self.arms.get(arm, {})) for arm in arms))
        return sorted(found, key=int)

    def has(self, arm: str, seed: int, is_followed: bool) -> bool:
        """Whether there is such a run."""
        run = self.arms.get(arm, {}).get(str(seed))
        return run is not None and (bool(run.steps) or not is_followed)

    def write(self, path: Path) -> None:
        """Write the file atomically."""
        with atomic_file(path) as temporary:
            temporary.write_text(json.dumps(msgspec.to_builtins(self), separators=(",", ":")) + "\n", encoding="utf-8")


def read_results(path: Path) -> Results:
    """Read a file.

    Raises:
        UsageError: if it is not one of this benchmark.
    """
    results = read_json(path, Results, REMEDY, MAX_BYTES)
    rows = len(results.targets)
    for arm, runs in results.arms.items():
        for seed, run in runs.items():
            if not seed.isdecimal() or len(run.scores) != rows:
                raise UsageError(f"{arm}, seed {seed} has {len(run.scores)} scores of {rows}: {path}; {REMEDY}")
    return results
