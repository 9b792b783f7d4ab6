"""Settings taken from the preprocessed data: special tokens, kind of targets."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from omegaconf import OmegaConf, open_dict

from sot_base.errors import UsageError
from sot_core.options import HEAD_OPTIONS
from sot_fairseq.data.header import HEADER, DataHeader

__all__ = ["record_settings_from_data", "take_settings_from_data"]

TAKEN = ("regression_target", "multi_label", "num_classes", "init_token", "separator_token")
TAKEN += tuple(option.name for option in HEAD_OPTIONS)  # which may be those of a checkpoint's head


def take_settings_from_data(cfg: Any, trained: bool) -> list[Path]:
    """Fill in ``regression_target``, ``multi_label`` and the special tokens from ``preprocess.json``.

    Args:
        cfg: The task's options; changed in place.
        trained: Whether the options are those of a trained model, which the data must fit.

    Returns:
        The dictionaries to load: of the input and, except for regression, of the labels.

    Raises:
        UsageError: If an option contradicts the data, or the folder lacks a dictionary.
    """
    data = Path(cfg.data)
    if (data / HEADER).is_file():
        _take_from_header(cfg, DataHeader.load(data), trained, os.path.abspath(data))
    if cfg.regression_target and cfg.multi_label:
        raise UsageError("several labels a row in a regression: --multi-label; leave out one of the two")
    files = [data / "input0" / "dict.txt"]
    if not cfg.regression_target:
        files.append(data / "label" / "dict.txt")
    for file in files:
        if file.is_file():
            continue
        if file.parent.name == "label" and (file.parent / "train.label").is_file():
            raise UsageError(f"the labels are numbers: {file.parent.absolute()}/train.label; give --regression-target")
        raise UsageError(f"no dictionary: {file.absolute()}; make the data with python -m sot_fairseq.preprocess")
    labels = data / "label"
    if cfg.regression_target and not trained and (labels / "dict.txt").is_file() and not any(labels.glob("*.label")):
        raise UsageError(f"the labels are not numbers: {labels.absolute()}; leave out --regression-target")
    return files


def record_settings_from_data(task: Any, criterion: Any) -> None:
    """Put what was taken from data and head into the options of the criterion and the run, which checkpoints keep.

    fairseq gives a task a copy of its options, so that of the run is found as the criterion's neighbour.

    Args:
        task: The task's own options.
        criterion: The criterion's options; changed in place, as those of the run that they belong to.
    """
    if not OmegaConf.is_config(criterion):
        return
    with open_dict(criterion):
        criterion.regression_target = task.regression_target
    run = criterion._get_parent()
    if run is not None and OmegaConf.is_config(run.get("task")):
        with open_dict(run.task):
            run.task.update({name: task[name] for name in TAKEN})


def _take_from_header(cfg: Any, header: DataHeader, trained: bool, data: str) -> None:
    kinds = (
        ("regression_target", header.regression, "--regression-target", "numbers", "preprocess with --regression"),
        ("multi_label", header.multi_label, "--multi-label", "several labels a row", "preprocess with --multi-label"),
    )
    for name, in_data, option, what, preprocess in kinds:
        if trained and cfg[name] != in_data:
            verbs = ("predicts", "do not have") if cfg[name] else ("does not predict", "have")
            raise UsageError(f"the model {verbs[0]} {what}, the data {verbs[1]} them: {data}; give data of its kind")
        if cfg[name] and not in_data:
            raise UsageError(f"{option}, but the data do not have {what}: {data}; leave it out, or {preprocess}")
        cfg[name] = in_data
    if header.regression and cfg.num_classes > 1:
        raise UsageError(f"--num-classes {cfg.num_classes}, but the data have one number a row: {data}; leave it out")
    if cfg.init_token is None:
        cfg.init_token, cfg.separator_token = header.init_token, header.separator_token
