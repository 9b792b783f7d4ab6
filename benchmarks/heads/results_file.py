"""The file of a data set: every training with its predictions, written after each seed."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from sot_base.atomic import atomic_file
from sot_base.errors import UsageError
from sot_base.small_files import read_json

__all__ = ["Results", "Run", "read_results", "results_path"]

MAX_BYTES = 256 * 2**20


class Run(msgspec.Struct):
    """A training.

    Attributes:
        settings: Options of head and training that were chosen, as command-line arguments.
        tried: The metric (percent) on the held-out rows of all settings that were tried; None: the training failed.
        parameters: Number of trained parameters.
        seconds: Computing time of the training on all training rows.
        mebibytes: Peak memory of a training step.
        value: The metric (percent) on the test rows.
        predictions: Predicted class of each test row.
    """

    settings: str
    tried: dict[str, float | None]
    parameters: int
    seconds: float
    mebibytes: float
    value: float
    predictions: list[int]


class Results(msgspec.Struct):
    """The trainings on a data set.

    Attributes:
        name: The data set.
        metric: Name of its metric.
        protocol: What all trainings have in common; a file is continued with the same protocol alone.
        targets: Class of each test row.
        heads: For each head its trainings by seed.
    """

    name: str
    metric: str
    protocol: dict[str, Any]
    targets: list[int]
    heads: dict[str, dict[str, Run]]

    def seeds(self) -> list[str]:
        """The seeds that all heads have, in numerical order."""
        found = set.intersection(*(set(runs) for runs in self.heads.values())) if self.heads else set()
        return sorted(found, key=int)

    def values(self, head: str) -> list[float]:
        """The metric of a head with each of the seeds that all heads have."""
        return [self.heads[head][seed].value for seed in self.seeds()]

    def predictions(self, head: str) -> np.ndarray:
        """Its predictions, (seeds, items)."""
        return np.array([self.heads[head][seed].predictions for seed in self.seeds()])

    def write(self, path: Path) -> None:
        """Write the file atomically."""
        with atomic_file(path) as temporary:
            temporary.write_text(json.dumps(msgspec.to_builtins(self), separators=(",", ":")) + "\n", encoding="utf-8")


def results_path(folder: Path, name: str, labels: int | None) -> Path:
    """The file of a data set in the output folder, or of draws of so many labels."""
    return folder / (f"{name}.json" if labels is None else f"{name}-{labels}.json")


def read_results(path: Path) -> Results:
    """Read a file.

    Raises:
        UsageError: if it is not one of this benchmark.
    """
    remedy = "remove it, or give another --output-dir"
    results = read_json(path, Results, remedy, MAX_BYTES)
    items = len(results.targets)
    for head, runs in results.heads.items():
        for seed, run in runs.items():
            if not seed.isdecimal() or len(run.predictions) != items:
                raise UsageError(
                    f"{head}, seed {seed} has {len(run.predictions)} predictions of {items}: {path}; {remedy}"
                )
    return results
