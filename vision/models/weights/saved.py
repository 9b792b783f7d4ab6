"""What checkpoints of this package say of themselves, besides tensors: checked before a model is built from it.

The recipe in a file chooses a model and its arguments. It must be one that timm has registered, its arguments are plain
values of moderate size, and none of them is a path or an address that timm would load. The model must have no more
parameters than the file.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Annotated, Any, Literal

import msgspec
import timm
import torch
from torch import Tensor, nn

from sot_base.errors import UsageError
from sot_base.schema import of_type
from sot_core import HeadConfig

__all__ = ["check_saved", "require_its_size"]

REMEDY = "the checkpoint is damaged, or not of this version: get or save it again"
MAX_SIZE, MAX_COUNT, MAX_DEPTH = 2**14, 512, 8
COUNTED = ("depth", "blocks", "layers", "iters", "values")  # names of arguments that repeat something
LOADED = {"pretrained", "pretrained_cfg", "pretrained_cfg_overlay", "checkpoint_path", "cache_dir", "features_only"}
Count = Annotated[int, msgspec.Meta(ge=0, le=2**53)]
Size = Annotated[int, msgspec.Meta(gt=0, le=MAX_SIZE)]
Classes = Annotated[int, msgspec.Meta(ge=0, le=2**24)]


class _Recipe(msgspec.Struct):
    name: str
    num_classes: Classes
    kwargs: dict[str, Any]
    head: dict[str, Any]


class _Segmenter(msgspec.Struct):
    model: str
    num_classes: Classes
    crop_size: Size
    kwargs: dict[str, Any] = {}
    neck: str = "side"
    out_indices: list[int] | None = None
    last_channels: Size = 2048
    decoder_channels: Size | None = None
    aux_channels: Size | None = None
    drop_rate: float = 0.1
    norm_eps: float | None = None


class _Rules(msgspec.Struct, forbid_unknown_fields=True):
    ignore_index: int = 255
    reduce_zero_label: bool = True


class _Images(msgspec.Struct):
    mean: tuple[float, ...]
    std: tuple[float, ...]
    short_side: Size


class _Data(msgspec.Struct):
    rules: _Rules
    images: _Images
    class_names: list[str] | None


class _DataConfig(msgspec.Struct):
    input_size: tuple[int, Size, Size]
    mean: tuple[float, ...] = ()
    std: tuple[float, ...] = ()
    crop_pct: float = 1.0
    interpolation: str = "bicubic"
    crop_mode: str = "center"


class _Options(msgspec.Struct):
    amp: bool | None = None
    amp_dtype: str | None = None
    dataset: str | None = None
    opt: str | None = None
    layer_decay: float | None = None


FileName = Annotated[str, msgspec.Meta(pattern=r"^checkpoint-\d+\.pth\.tar$")]


class _Saver(msgspec.Struct):
    """What timm's saver resumes from; it removes old ones of these files, so none may lie elsewhere."""

    checkpoint_files: list[tuple[FileName, float | None]] = []
    best_epoch: int | None = None
    best_metric: float | None = None
    pending: tuple[int | None, float | None] = (None, None)


class _State(msgspec.Struct):
    """``progress`` and ``saver`` of an older segmentation run."""

    step: Count
    loss_steps: Count
    loss_sum: float
    bad_images: Count
    best: float
    history: list[dict[str, Any]]


_ENTRIES: dict[str, Any] = {
    "recipe": _Recipe,
    "segmenter": _Segmenter,
    "data": _Data,
    "data_config": _DataConfig,
    "class_names": list[str] | None,
    "options": _Options,
    "progress": dict[str, Any],
    "images_per_step": Count,
    "multi_label": bool,
    "better_weights": Literal["raw", "ema"],
    "data_path": str,
    "saver": _Saver,
    "state": _State,
    **dict.fromkeys(("state_dict", "state_dict_ema", "optimizer", "amp_scaler"), dict[str, Any]),
}
_NEEDED = {
    "recipe": ("state_dict", "data_config", "class_names", "options"),
    "segmenter": ("state_dict", "data", "options"),
}


def check_saved(checkpoint: Mapping[str, Any], where: str) -> None:
    """Check the entries of a checkpoint that this package wrote; others have none of them.

    Args:
        checkpoint: The content of a file.
        where: The file, for messages.

    Raises:
        UsageError: With the entry that is missing or is not what it should be.
    """
    kind = next((key for key in _NEEDED if key in checkpoint), None)
    if kind is None:
        return
    for name in _NEEDED[kind]:
        if name not in checkpoint:
            raise UsageError(f"{name} is missing: {where}; {REMEDY}")
    for name in _ENTRIES.keys() & checkpoint.keys():
        value = checkpoint[name]
        of_type(dict(value) if isinstance(value, Mapping) else value, _ENTRIES[name], f"{name} of {where}", REMEDY)
    for name in ("state_dict", "state_dict_ema"):
        if not all(isinstance(key, str) and isinstance(item, Tensor) for key, item in checkpoint.get(name, {}).items()):
            raise UsageError(f"an entry that is not a tensor: {name} of {where}; {REMEDY}")
    recipe = checkpoint[kind]
    _check_model(recipe["name" if kind == "recipe" else "model"], recipe.get("kwargs", {}), f"{kind} of {where}")
    if recipe.get("head"):
        _check_head(recipe["head"], f"head of {where}")


def _check_model(name: str, kwargs: Mapping[str, Any], where: str) -> None:
    if not timm.is_model(name):
        raise UsageError(f"unknown model {name!r}: {where}; {REMEDY}")
    loaded = sorted(LOADED & kwargs.keys())
    if loaded:
        raise UsageError(f"an argument that loads other files, {loaded[0]}: {where}; {REMEDY}")
    for key, value in kwargs.items():
        _check_argument(str(key), value, where)


def _check_argument(name: str, value: Any, where: str, depth: int = 0) -> None:
    limit = MAX_COUNT if any(part in name for part in COUNTED) else MAX_SIZE
    if depth > MAX_DEPTH or not isinstance(value, (bool, int, float, str, list, tuple, dict, type(None))):
        raise UsageError(f"argument {name[:80]} is not a plain value: {where}; {REMEDY}")
    if isinstance(value, (int, float)) and not abs(value) <= limit:
        raise UsageError(f"argument {name[:80]} is {value}, more than {limit}: {where}; {REMEDY}")
    if isinstance(value, dict):
        for key, item in value.items():
            _check_argument(str(key), item, where, depth + 1)
    elif isinstance(value, (list, tuple)):
        for item in value[: MAX_COUNT + 1]:
            _check_argument(name, item, where, depth + 1)
        if len(value) > MAX_COUNT:
            raise UsageError(f"argument {name[:80]} has {len(value)} entries: {where}; {REMEDY}")


def _check_head(fields: Mapping[str, Any], where: str) -> None:
    for key, value in fields.items():
        _check_argument(str(key), value, where)
    try:
        HeadConfig.from_dict({"embed_dim": 1, "num_classes": 1, **fields})
    except ValueError as error:
        raise UsageError(f"{' '.join(str(error).split())[:300]}: {where}; {REMEDY}") from None


def require_its_size(build: Callable[[], nn.Module], state: Mapping[str, Tensor], where: str) -> None:
    """Make sure that a recipe from a file asks for no more memory than the tensors beside it.

    Args:
        build: Builds the model; it is called on the meta device.
        state: The tensors.
        where: The file, for messages.

    Raises:
        UsageError: If the model is larger, or cannot be built.
    """
    try:
        with torch.device("meta"):
            wanted = sum(tensor.numel() for tensor in build().state_dict().values())
    except UsageError:
        raise
    except Exception as error:  # torch and timm meet almost any in values that fit no model
        reason = f"{type(error).__name__}: {' '.join(str(error).split())[:200]}"
        raise UsageError(f"its model cannot be built ({reason}): {where}; {REMEDY}") from error
    there = sum(tensor.numel() for tensor in state.values())
    if wanted > 1.5 * there + 2**20:
        raise UsageError(f"a model of {wanted:,} parameters, {there:,} are in the file: {where}; {REMEDY}")
