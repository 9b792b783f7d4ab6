"""fairseq-train's ``--arch`` and size flags of an encoder: from its folder, its checkpoint, or ``scratch:``."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

import msgspec

from sot_base.errors import UsageError
from sot_base.small_files import read_json
from sot_fairseq.fairseq_patches.option_types import allowed_names
from sot_fairseq.fairseq_patches.safe_loading import model_options, read_checked_checkpoint
from sot_text.formats.architecture import ACTIVATIONS, BertArchitecture, Size

__all__ = ["bert_model_args", "fairseq_arch_args", "scratch_arch_args"]


class _Description(msgspec.Struct):
    """What ``architecture.json`` holds."""

    arch: str
    layers: Size
    embed_dim: Size
    ffn_dim: Size
    heads: Size
    max_positions: Size
    token_types: Annotated[int, msgspec.Meta(ge=0)]
    activation: Literal[tuple(dict.fromkeys(ACTIVATIONS.values()))]
    layer_norm_eps: float


HEAD_WIDTH = 64  # of an attention head at most, as in BERT and RoBERTa
SIZES = (
    "encoder_layers",
    "encoder_embed_dim",
    "encoder_ffn_embed_dim",
    "encoder_attention_heads",
    "max_positions",
    "activation_fn",
    "token_types",
    "layer_norm_eps",
)


def bert_model_args(architecture: BertArchitecture) -> dict[str, Any]:
    """Map fairseq's names of a BERT's sizes to their values."""
    sizes = architecture
    values = (sizes.layers, sizes.embed_dim, sizes.ffn_dim, sizes.heads, sizes.max_positions)
    values += (sizes.activation, sizes.token_types, sizes.layer_norm_eps)
    return dict(zip(SIZES, values, strict=True))


def fairseq_arch_args(folder: str | os.PathLike[str]) -> list[str]:
    """Return the flags with which ``fairseq-train`` builds the encoder of a folder.

    Args:
        folder: A folder with ``model.pt``, or a checkpoint file in one. ``architecture.json`` (of a conversion) is read
            if it is there; else the arguments in the checkpoint.

    Example:
        ``["--arch", "sot_bert_base", "--encoder-layers", "6", "--encoder-embed-dim", "384", ...]``

    Raises:
        UsageError: If there is neither, or the model is not of fairseq's RoBERTa family.
    """
    path = Path(folder)
    checkpoint = path / "model.pt" if path.is_dir() else path
    description = checkpoint.parent / "architecture.json"
    if description.is_file():
        found = read_json(description, _Description, "convert the encoder again")
        if found.arch not in allowed_names()["model"]:
            raise UsageError(f"arch {found.arch!r} is unknown: {description.absolute()}; convert the encoder again")
        sizes = {name: getattr(found, name) for name in BertArchitecture.__dataclass_fields__}
        return _flags(found.arch, bert_model_args(BertArchitecture(**sizes)))
    state = read_checked_checkpoint(checkpoint)
    args = model_options(state, str(checkpoint.absolute()))
    arch = args.get("_name") or args.get("arch")
    if not any("encoder.sentence_encoder." in name or "decoder.sentence_encoder." in name for name in state["model"]):
        raise UsageError(f"not a RoBERTa or BERT encoder ({arch}): {checkpoint.resolve()}; give one of those")
    return _flags(arch, args)


def scratch_arch_args(encoder: str) -> list[str]:
    """Return the flags of a randomly initialised RoBERTa ``scratch:<layers>x<dim>``.

    It has 4 times the width in its feed-forward layers and the fewest attention heads that are at most 64 wide.

    Raises:
        UsageError: If the text has another form.
    """
    match = re.fullmatch(r"scratch:([1-9]\d*)x([1-9]\d*)", encoder)
    if match is None:
        raise UsageError(f"not an encoder: {encoder}; write scratch:<layers>x<dim>, for example scratch:2x64")
    layers, width = int(match[1]), int(match[2])
    heads = next(n for n in range(1, width + 1) if width % n == 0 and width // n <= HEAD_WIDTH)
    return _flags("roberta_base", dict(zip(SIZES, (layers, width, 4 * width, heads, 512), strict=False)))


def _flags(arch: str, args: Mapping[str, Any]) -> list[str]:
    sizes = [(name, args[name]) for name in SIZES if args.get(name) is not None]
    return ["--arch", arch, *(text for name, value in sizes for text in (f"--{name.replace('_', '-')}", str(value)))]
