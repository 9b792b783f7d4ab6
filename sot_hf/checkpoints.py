"""The folders ``checkpoint-<step>`` of a training's output folder: which are intact, and how they are made and removed.

A checkpoint is written under another name (``.checkpoint-6.unfinished``), renamed when it is whole, and renamed again
before it is removed. So whenever a run is killed, what has the name of a checkpoint is one; the next start removes the
rest (:func:`sot_base.atomic.remove_unfinished`).
"""

from __future__ import annotations

import contextlib
import logging
import re
import shutil
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
from safetensors import safe_open

from sot_base.atomic import UNFINISHED
from sot_base.errors import UsageError
from sot_base.safe_checkpoint import check_records
from sot_base.safetensors_checksum import check_checksum
from sot_base.small_files import read_json
from sot_hf.configuration import SoTConfig

__all__ = [
    "STATE",
    "check_same_model",
    "check_whole",
    "clear_output",
    "find_checkpoints",
    "find_models",
    "newest_whole",
    "unfinished_folder",
    "publish",
    "rotate",
]

logger = logging.getLogger(__name__)

STATE = "trainer_state.json"  # the last file of a checkpoint
NAME = re.compile(r"checkpoint-(\d+)")
PARTS = ("*model*", "optimizer*", "scheduler*", "rng_state*")  # what a resumed training reads besides the state
WEIGHTS = "model*.safetensors*"


def find_checkpoints(output: Path) -> list[Path]:
    """The checkpoints of a folder that were written to their end, the oldest first."""
    return sorted((path for path in _folders(output) if (path / STATE).is_file()), key=_step)


def find_models(output: Path) -> list[Path]:
    """The weights directly in a folder."""
    return sorted(output.glob("model*.safetensors"))


def newest_whole(output: Path) -> Path | None:
    """The newest checkpoint that a training can be resumed from; None if the folder has no checkpoint.

    Raises:
        UsageError: If it has checkpoints, but none is whole.
    """
    problems = []
    for checkpoint in reversed(find_checkpoints(output)):
        try:
            check_whole(checkpoint)
        except UsageError as error:
            problems.append(error)
            continue
        for problem in problems:
            logger.warning("%s: resuming from %s", problem, checkpoint.name)
        return checkpoint
    if problems:
        raise problems[0]
    return None


def check_whole(checkpoint: Path) -> None:
    """Refuse a checkpoint that a training cannot be resumed from.

    Raises:
        UsageError: naming the file that is absent or cut off.
    """
    remedy = f"{checkpoint.absolute()}; give another one, or leave out --resume_from_checkpoint"
    for pattern in (STATE, *PARTS):
        files = sorted(checkpoint.glob(pattern))
        if not files:
            raise UsageError(f"not an intact checkpoint, it lacks {pattern.strip('*')}: {remedy}")
        for file in files:
            try:
                _READERS.get(file.suffix, Path.stat)(file)
            except Exception as error:  # whatever a reader makes of half a file
                raise UsageError(f"not an intact checkpoint, {file.name} is cut off or broken: {remedy}") from error


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
        raise UsageError(f"a model with other labels or another head: {checkpoint.absolute()}; give one of this run")


def clear_output(output: Path, resume: bool) -> None:
    """Remove unfinished checkpoints and, for a training from scratch, the earlier run."""
    kept = find_checkpoints(output) if resume else []
    for path in _folders(output):
        if path not in kept:
            remove_folder(path)
    if resume:
        return
    for path in (*output.glob("*_results.json"), output / STATE):
        path.unlink(missing_ok=True)
    if find_models(output):
        (output / "README.md").unlink(missing_ok=True)


@contextlib.contextmanager
def unfinished_folder(path: Path, owner: bool = True) -> Iterator[Path]:
    """Yield an empty folder to write into, beside `path`; it is removed at the end, with what was not moved out of it.

    Args:
        path: What is to be written.
        owner: Whether this process makes and removes the folder; the others of a distributed training share it.
    """
    folder = path.with_name(f".{path.name}{UNFINISHED}")
    if owner:
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
    try:
        yield folder
    finally:
        if owner:
            shutil.rmtree(folder, ignore_errors=True)


def publish(folder: Path, output: Path) -> None:
    """Move the files of a saved model to where they belong, the weights last; an edited ``README.md`` stays."""
    files = sorted(folder.iterdir(), key=lambda file: file.match(WEIGHTS))
    for stale in set(output.glob(WEIGHTS)) - {output / file.name for file in files}:
        stale.unlink()
    for file in files:
        if file.name != "README.md" or not (output / file.name).exists():
            file.replace(output / file.name)


def rotate(output: Path, limit: int | None, best: str | None) -> None:
    """Remove the oldest checkpoints so that `limit` are left; the newest and the best one stay.

    Args:
        output: The folder with the checkpoints.
        limit: Most checkpoints to keep (> 0); None or less: all of them.
        best: Path of the best checkpoint, if there is one.
    """
    if limit is None or limit < 1:
        return
    found = find_checkpoints(output)
    kept = {*found[-1:], *(path for path in found if best and path.name == Path(best).name)}
    surplus = len(found) - max(limit, len(kept))
    for path in [path for path in found if path not in kept][: max(surplus, 0)]:
        remove_folder(path)


def remove_folder(path: Path) -> None:
    """Remove a folder; if the process dies on the way, what is left does not have its name any more."""
    dying = path.with_name(f".{path.name}{UNFINISHED}")
    shutil.rmtree(dying, ignore_errors=True)
    path.rename(dying)
    shutil.rmtree(dying)


def _folders(output: Path) -> list[Path]:
    return [path for path in output.glob("checkpoint-*") if NAME.fullmatch(path.name) and path.is_dir()]


def _step(path: Path) -> int:
    return int(path.name.rpartition("-")[2])


class _TrainerState(msgspec.Struct):
    """What transformers resumes from, in ``trainer_state.json``."""

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
        check_checksum(file)


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
