"""The folders ``checkpoint-<step>`` of a training's output folder: which are whole, which can be gone on from."""

from __future__ import annotations

import re
import shutil
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
from safetensors import safe_open

from sot_base.errors import UsageError
from sot_base.safe_checkpoint import check_records
from sot_base.small_files import read_json
from sot_hf.configuration import SoTConfig

__all__ = ["STATE", "check_same_model", "check_whole", "clear_output", "find_checkpoints", "find_models"]

STATE = "trainer_state.json"  # the last file of a checkpoint
NAME = re.compile(r"checkpoint-(\d+)")
PARTS = ("*model*", "optimizer*", "scheduler*", "rng_state*")  # what a resumed training reads besides the state


def find_checkpoints(output: Path) -> list[Path]:
    """The checkpoints of a folder that were written to their end, the oldest first."""
    return sorted((path for path in _folders(output) if (path / STATE).is_file()), key=_step)


def find_models(output: Path) -> list[Path]:
    """The weights that lie in a folder itself."""
    return sorted(output.glob("model*.safetensors"))


def check_whole(checkpoint: Path) -> None:
    """Refuse a checkpoint that a training cannot go on from.

    Raises:
        UsageError: naming the file that is absent or cut off.
    """
    mend = f"{checkpoint.absolute()}; give another one, or leave out --resume_from_checkpoint"
    for pattern in (STATE, *PARTS):
        files = sorted(checkpoint.glob(pattern))
        if not files:
            raise UsageError(f"no whole checkpoint, it lacks {pattern.strip('*')}: {mend}")
        for file in files:
            try:
                _READERS.get(file.suffix, Path.stat)(file)
            except Exception as error:  # whatever a reader makes of half a file
                raise UsageError(f"no whole checkpoint, {file.name} is cut off or broken: {mend}") from error


def check_same_model(checkpoint: Path, config: SoTConfig) -> None:
    """Refuse a checkpoint of a model with other labels or another head.

    Raises:
        UsageError: naming it.
    """
    try:
        saved = SoTConfig.from_pretrained(checkpoint)
    except Exception as error:
        raise UsageError(f"cannot read its config.json: {checkpoint.absolute()}; remove this checkpoint") from error
    if (saved.id2label, saved.head) != (config.id2label, config.head):
        raise UsageError(f"a model with other labels or another head: {checkpoint.absolute()}; give the run's own one")


def clear_output(output: Path, resume: bool) -> None:
    """Remove what a training is about to replace: half-written checkpoints, and where it starts anew all of the run."""
    kept = find_checkpoints(output) if resume else []
    for path in _folders(output):
        if path not in kept:
            shutil.rmtree(path)
    if not resume and find_models(output):
        (output / "README.md").unlink(missing_ok=True)


def _folders(output: Path) -> list[Path]:
    return [path for path in output.glob("checkpoint-*") if NAME.fullmatch(path.name) and path.is_dir()]


def _step(path: Path) -> int:
    return int(path.name.rpartition("-")[2])


class _TrainerState(msgspec.Struct):
    """What transformers goes on from, in ``trainer_state.json``."""

    epoch: float | None
    global_step: int
    max_steps: int
    num_train_epochs: int
    log_history: list[dict[str, Any]]
    best_metric: float | None = None
    best_global_step: int | None = None
    best_model_checkpoint: str | None = None
    stateful_callbacks: dict[str, Any] = {}


def _read_json(file: Path) -> None:
    read_json(file, _TrainerState if file.name == STATE else dict[str, Any])


def _read_safetensors(file: Path) -> None:
    with safe_open(file, framework="pt"):
        pass


def _read_torch(file: Path) -> None:
    if not zipfile.is_zipfile(file):
        raise ValueError("it is cut off")
    check_records(file)


_READERS: dict[str, Callable[[Path], object]] = {
    ".json": _read_json,
    ".safetensors": _read_safetensors,
    ".pt": _read_torch,
    ".pth": _read_torch,
    ".bin": _read_torch,
}
