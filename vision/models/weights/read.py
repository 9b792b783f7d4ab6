"""Checkpoints: timm's saver with outputs that are never half written, and reading them back safely."""

from __future__ import annotations

import os
import pickle
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from timm.models import clean_state_dict
from timm.utils import CheckpointSaver
from torch import nn

from sot_base.atomic import atomic_file
from sot_base.errors import UsageError

__all__ = ["Saver", "check_same_run", "choose_weights", "find_latest", "load_state", "read_checkpoint"]


class Saver(CheckpointSaver):
    """`timm.utils.CheckpointSaver` that replaces files in one move; a kill leaves the old or the new one whole."""

    def _replace(self, src: str, dst: str) -> None:
        os.replace(src, dst)

    def _duplicate(self, src: str, dst: str) -> None:
        with atomic_file(dst) as temporary:
            temporary.unlink()
            try:
                os.link(src, temporary)
            except OSError:  # a file system without links
                shutil.copy2(src, temporary)


def read_checkpoint(path: str | os.PathLike[str]) -> dict[str, Any]:
    """The content of a checkpoint file, without running code from it.

    A bare state dict comes as ``{"state_dict": ...}``.

    Raises:
        UsageError: naming the file, if it is missing, cut off, no checkpoint, or holds objects that are not safe.
    """
    file = Path(path)
    if not file.is_file():
        raise UsageError(f"no such checkpoint: {file.resolve()}; give the path of a checkpoint file")
    try:
        if file.suffix == ".safetensors":
            content = _read_safetensors(file)
        else:
            allowed = torch.serialization.get_safe_globals()  # the context forgets what it is given, also these
            with torch.serialization.safe_globals([kind for kind in _harmless() if kind not in allowed]):
                content = torch.load(file, map_location="cpu", weights_only=True)
    except pickle.UnpicklingError as error:
        unsafe = _unsafe_globals(file)
        problem = f"it holds {', '.join(unsafe)}" if unsafe else "it is no checkpoint"
        raise UsageError(f"cannot read the checkpoint: {file} ({problem}); save tensors and plain values") from error
    except Exception as error:  # torch meets any in a file that is none
        raise UsageError(f"cannot read the checkpoint: {file}; it is cut off or no checkpoint file") from error
    if not isinstance(content, Mapping):
        raise UsageError(f"no checkpoint: {file} holds a {type(content).__name__}; give a file with a state dict")
    return dict(content) if _is_nested(content) else {"state_dict": dict(content)}


def _read_safetensors(file: Path) -> dict[str, torch.Tensor]:
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    try:
        return load_file(file)
    except SafetensorError as error:
        raise ValueError(str(error)) from error


def _harmless() -> list[Any]:
    from argparse import Namespace  # how timm and the published code keep their options

    return [Namespace]


def _unsafe_globals(file: Path) -> list[str]:
    try:
        return torch.serialization.get_unsafe_globals_in_checkpoint(file)
    except Exception:  # a file that is no checkpoint at all
        return []


def _is_nested(content: Mapping[str, Any]) -> bool:
    return any(isinstance(content.get(key), Mapping) for key in ("state_dict", "state_dict_ema", "model", "model_ema"))


def choose_weights(checkpoint: Mapping[str, Any], weights: str = "auto") -> tuple[str, dict[str, torch.Tensor]]:
    """Pick a state dict of a checkpoint.

    Args:
        checkpoint: As of `read_checkpoint`.
        weights: ``ema``, ``raw``, or ``auto``: the averaged ones where there are any.

    Returns:
        ``ema`` or ``raw``, and the state dict without the prefixes of distributed or compiled models.

    Raises:
        UsageError: if the checkpoint has no such weights.
    """
    keys = {"ema": ("state_dict_ema", "model_ema"), "raw": ("state_dict", "model")}
    for kind in ("ema", "raw") if weights == "auto" else (weights,):
        for key in keys[kind]:
            if isinstance(checkpoint.get(key), Mapping):
                return kind, clean_state_dict(checkpoint[key])
    raise UsageError(f"the checkpoint has no {weights} weights: it holds {', '.join(checkpoint)}; see --weights")


def find_latest(folder: str | os.PathLike[str]) -> Path:
    """The checkpoint in a run's folder that has seen the most updates.

    Raises:
        UsageError: if there is none.
    """
    files = [*Path(folder).glob("last.pth.tar"), *Path(folder).glob("recovery-*.pth.tar")]
    if not files:
        raise UsageError(f"nothing to resume: no checkpoint in {Path(folder).resolve()}; leave out --resume")
    return max(files, key=lambda file: read_checkpoint(file).get("progress", {}).get("updates", 0))


def load_state(model: nn.Module, state: Mapping[str, torch.Tensor], where: str) -> None:
    """Load a state dict that must fit exactly.

    Raises:
        UsageError: naming what does not fit.
    """
    try:
        model.load_state_dict(state)
    except RuntimeError as error:
        reason = " ".join(str(error).split())[:300]
        raise UsageError(f"the checkpoint does not fit the model: {where} ({reason}); give its --model") from error


def check_same_run(checkpoint: Mapping[str, Any], recipe: Mapping[str, Any], class_names: Sequence[str]) -> None:
    """Make sure that a run can go on from a checkpoint.

    Args:
        checkpoint: As of `read_checkpoint`.
        recipe: The model that the options ask for; of the head, only what they give.
        class_names: The data's classes.

    Raises:
        UsageError: naming what is different.
    """
    if "recipe" not in checkpoint or "progress" not in checkpoint:
        raise UsageError(
            "--resume goes on with a run of vision/train.py; --initial-checkpoint starts from other weights"
        )
    saved = checkpoint["recipe"]
    pairs = [(key, recipe[key], saved[key]) for key in ("name", "num_classes")]
    arguments = sorted(recipe["kwargs"].keys() | saved["kwargs"].keys())
    pairs += [
        (key, *(kwargs.get(key, "its default") for kwargs in (recipe["kwargs"], saved["kwargs"]))) for key in arguments
    ]
    pairs += [(f"head {key}", value, saved["head"].get(key)) for key, value in recipe["head"].items()]
    pairs += [("classes", list(class_names), list(checkpoint["class_names"]))]
    for key, new, old in pairs:
        if new != old:
            raise UsageError(
                f"--resume: the checkpoint has another {key}, {_short(old)} instead of {_short(new)}; "
                "give the same options, or --initial-checkpoint to start anew from its weights"
            )


def _short(value: Any) -> str:
    text = str(value)
    return text if len(text) <= 60 else f"{text[:57]}..."
