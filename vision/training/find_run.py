"""Find the run that ``--resume`` continues: by its path, its name, or else by its data and options."""

from __future__ import annotations

import logging
import os
import re
from argparse import Namespace
from collections.abc import Mapping
from copy import deepcopy
from functools import lru_cache
from pathlib import Path
from typing import Any

from sot_base.errors import UsageError
from vision.cli.config_file import read_yaml
from vision.cli.recipes import NO_RECIPE
from vision.cli.resolve_options import plain_options, resolve_options
from vision.cli.run_files import run_name
from vision.models.weights.read import read_checkpoint

__all__ = ["changed_options", "data_identity", "find_checkpoints", "find_resume", "saved_recipe_name"]

_logger = logging.getLogger(__name__)
_DATA = ("data_dir", "dataset", "train_split", "val_split")
_FREE = {  # options that say nothing of a run
    *("resume", "output", "experiment", "config", "dry_run", "eval", "download", "data_path"),
    *("device", "workers", "max_steps", "log_interval", "checkpoint_steps", "tensorboard"),
}


def find_resume(args: Namespace) -> list[Path]:
    """The checkpoint files that a run can continue from, the newest first; none for a new run.

    Args:
        args: The resolved options. Without ``--experiment``, ``--resume`` alone looks for the one run whose data, and
            if need be other options, are these. If that was killed before its first save, ``experiment`` is set to
            its folder, and it starts anew.

    Raises:
        UsageError: if there is no such run, or there are several.
    """
    if not args.resume:
        return []
    if args.resume != "auto":
        path = Path(args.resume)
        return _need(find_checkpoints(path), path) if path.is_dir() else [path]
    output = Path(args.output)
    folder = output / args.experiment if args.experiment else _find_folder(args, output)
    files = find_checkpoints(folder)
    if not files and folder.is_dir():
        _logger.warning(f"no checkpoint in {folder}: the run starts from scratch")
        args.experiment = folder.name if args.experiment is None else args.experiment
        return []
    return _need(files, folder)


def saved_recipe_name(args: Namespace) -> str | None:
    """The recipe of the run that ``--resume`` goes on with; None where there is no run, or not one alone.

    A run from before there were recipes has `NO_RECIPE`.

    Args:
        args: The options, not resolved; they are not changed.
    """
    trial = deepcopy(args)
    trial.world_size = int(os.environ.get("WORLD_SIZE", 1))
    logging.disable(logging.WARNING)  # the run itself finds the checkpoint once more, and says so
    try:
        resolve_options(trial)
        file = next(iter(find_resume(trial)), None)
        saved = {} if file is None else _plain_values(file).get("options", {})
    except UsageError:  # the run itself reports it
        return None
    finally:
        logging.disable(logging.NOTSET)
    return None if file is None else saved.get("train_recipe", NO_RECIPE)


def find_checkpoints(folder: str | os.PathLike[str]) -> list[Path]:
    """The checkpoints that a run can resume from, that of the most updates first.

    Of several files the plain values are read. One that cannot be read is left out with a warning.

    Raises:
        UsageError: if none of several can be read.
    """
    files = [*Path(folder).glob("last.pth.tar"), *sorted(Path(folder).glob("recovery-*.pth.tar"))]
    if len(files) < 2:
        return files
    updates, errors = {}, []
    for file in files:
        try:
            updates[file] = _plain_values(file).get("progress", {}).get("updates", 0)
        except UsageError as error:
            errors.append(error)
            _logger.warning(f"left out: {error}")
    if not updates:
        raise errors[0]
    return sorted(updates, key=lambda file: -updates[file])


def _need(files: list[Path], folder: Path) -> list[Path]:
    if not files:
        raise UsageError(f"nothing to resume: no checkpoint in {folder.resolve()}; leave out --resume")
    return files


def _find_folder(args: Namespace, output: Path) -> Path:
    """The folder of the run that these options are of."""
    name = run_name(args)
    numbered = re.compile(re.escape(name) + r"(-\d+)?")
    folders = sorted(path for path in output.glob("*") if path.is_dir() and numbered.fullmatch(path.name))
    if not folders:
        return output / name  # for the message
    options = {folder: _saved_options(folder) for folder in folders}
    wanted = data_identity(vars(args))
    found = [folder for folder in folders if options[folder] and data_identity(options[folder]) == wanted]
    if len(found) > 1:
        alike = [folder for folder in found if not changed_options(options[folder], args)]
        found = alike if len(alike) == 1 else found
    if len(found) == 1:
        return found[0]
    named = ", ".join(folder.name for folder in found or folders)
    what = "several runs of this data" if found else "no run of this data"
    raise UsageError(f"{what}: {output} has {named}; name the one to resume as --experiment")


def _saved_options(folder: Path) -> Mapping[str, Any]:
    """The options of the run in a folder; none if nothing there can be read."""
    try:
        for file in find_checkpoints(folder):
            checkpoint = _plain_values(file)
            return {**checkpoint["options"], "data_path": checkpoint.get("data_path")}
        return read_yaml(folder / "options.yaml")
    except (UsageError, KeyError):
        return {}


def _plain_values(file: Path) -> Mapping[str, Any]:
    """The plain values of a checkpoint, read once for as long as the file stays the same."""
    status = file.stat() if file.is_file() else None
    stamp = None if status is None else (status.st_ino, status.st_size, status.st_mtime_ns)
    return _read_values(file.absolute(), stamp)


@lru_cache(maxsize=16)
def _read_values(file: Path, stamp: tuple[int, ...] | None) -> Mapping[str, Any]:
    return read_checkpoint(file, plain_values=True)


def data_identity(options: Mapping[str, Any]) -> tuple[Any, ...]:
    """What data a run is of, whatever folder it was started in."""
    path = options.get("data_path") or options.get("data_dir")
    where = None if path is None else str(Path(path).resolve())
    return (where, *(options.get(name) for name in _DATA[1:]))


def changed_options(saved: Mapping[str, Any], args: Namespace) -> list[str]:
    """The options of a run that are others now, as ``lr 0.001 (was 0.01)``."""
    now = {name: value for name, value in plain_options(args).items() if name not in _FREE | {"data_dir"}}
    pairs = [(name, _plain(value), _plain(saved[name])) for name, value in now.items() if name in saved]
    return [f"{name} {new} (was {old})" for name, new, old in pairs if new != old]


def _plain(value: Any) -> Any:
    return list(value) if isinstance(value, tuple) else value
