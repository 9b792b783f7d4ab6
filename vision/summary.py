"""Parameters, multiply-adds and activations of a model, part by part, and of all models beside the published counts.

``python -m vision.summary sot_tiny``, ``python -m vision.summary resnet50 --img-size 288 --mgcrp-heads 6``; without a
model the table of all. Nothing is computed: the model runs on torch's meta device.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from sot_base.command_help import show_help
from vision.cli.command_options import summary_parser

if __name__ == "__main__":  # before the imports that take seconds
    show_help(summary_parser)

import timm
import torch
from timm.models import get_model_input_config
from torch import nn
from torch.utils.flop_counter import FlopCounterMode, flop_registry

from sot_base.errors import run_main
from sot_core.pooling import Pooling
from vision.cli.train_options import given_head_settings
from vision.models.build import build_model, model_recipe
from vision.models.dense_block import Transition
from vision.models.sizes import PUBLISHED_SIZES

__all__ = ["Part", "count_parts", "format_all", "format_parts", "main"]

_ATTENTION = ("bmm", "baddbmm", "attention")  # in the names of products of two activations


@dataclass(frozen=True)
class Part:
    """Counts of a module with all it contains.

    Attributes:
        name: Its name in the model; empty for the model.
        params: Parameters.
        trainable: Parameters that are trained.
        macs: Multiply-adds of convolutions, linear layers and matrix products, for one image.
        linear_macs: Those of convolutions and linear layers alone, the way of counting behind the published numbers.
        activations: Values that convolutions, linear layers and matrix products give out, for one image.
    """

    name: str
    params: int
    trainable: int
    macs: int
    linear_macs: int
    activations: int


def count_parts(model: nn.Module, img_size: tuple[int, int] | None = None, depth: int = 2) -> list[Part]:
    """Count a model and its modules; the model's tensors are gone afterwards (it is moved to the meta device).

    Args:
        model: An image model.
        img_size: Height and width of the image; None: what the model is made for.
        depth: How deep modules are listed; 0: the model alone.
    """
    channels, *size = get_model_input_config(model)["input_size"]
    image = torch.empty(1, channels, *(img_size or size), device="meta")
    model = model.eval().to("meta")
    for module in model.modules():
        if isinstance(module, (Pooling, Transition)):  # a hook lets them call their parts as modules
            module.register_forward_hook(lambda module, args, output: None)
    sizes = {operator: _output_size for operator in flop_registry}
    flops, activations = FlopCounterMode(display=False), FlopCounterMode(display=False, custom_mapping=sizes)
    with torch.no_grad(), flops, activations:
        model(image)
    parts = []
    for name, module in model.named_modules():
        if (name and name.count(".") >= depth) or (name and not list(module.parameters())):
            continue
        key = f"{type(model).__name__}.{name}" if name else "Global"
        counts = {str(operator): count // 2 for operator, count in flops.get_flop_counts().get(key, {}).items()}
        parameters = list(module.parameters())
        parts.append(
            Part(
                name,
                sum(parameter.numel() for parameter in parameters),
                sum(parameter.numel() for parameter in parameters if parameter.requires_grad),
                sum(counts.values()),
                sum(count for operator, count in counts.items() if not any(word in operator for word in _ATTENTION)),
                sum(activations.get_flop_counts().get(key, {}).values()),
            )
        )
    return parts


def _output_size(*args: Any, out_shape: Any, **kwargs: Any) -> int:
    return math.prod(out_shape)


def format_parts(parts: Sequence[Part]) -> str:
    """A table of a model's parts, one a line."""
    rows = [("part", "params", "trainable", "MACs", "conv + linear", "activations")]
    for part in parts:
        counts = (part.params, part.trainable, part.macs, part.linear_macs, part.activations)
        rows.append((part.name or "(all)", *(f"{count:,}" for count in counts)))
    return _align(rows)


def format_all() -> str:
    """The table of all models of this package, their counts beside the published ones."""
    counts = (
        "params M",
        "trainable",
        "published",
        "its code",
        "GMACs",
        "its code",
        "conv+linear",
        "published",
        "act M",
    )
    rows = [("model", *counts)]
    for name, size in PUBLISHED_SIZES.items():
        with torch.device("meta"):
            model = timm.create_model(name)
        whole = count_parts(model, depth=0)[0]
        code = size.code_params and "{:.3f} ({:.3f})".format(*size.code_params)
        code_gmacs = size.code_gmacs and f"{size.code_gmacs:.3f}"
        millions = [f"{count / 1e6:.3f}" for count in (whole.params, whole.trainable)]
        gmacs, linear = (f"{count / 1e9:.3f}" for count in (whole.macs, whole.linear_macs))
        row = (name, *millions, size.params, code, gmacs, code_gmacs, linear, size.gmacs)
        cells = ["-" if cell is None else str(cell) for cell in row]
        rows.append((*cells, f"{whole.activations / 1e6:.2f}"))
    notes = (
        "224 pixels (or what a name ends with) and 1,000 classes; sot_micro: 32 and 10. GMACs: convolutions, linear",
        "layers and matrix products; conv+linear: without products of two activations, as the published numbers were",
        "counted, but HVT's, which are of all products.",
        "'its code': the published code as it is, all parameters (trainable ones), which is more than its table says:",
        "SoT-Tiny 8.03 M for 7.7 M, SoT-Small 27.09 M for 26.9 M. For deit_* and swin_* models no code is published.",
    )
    return "\n".join((_align(rows), "", *notes))


def _align(rows: Sequence[Sequence[str]]) -> str:
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return "\n".join(
        "  ".join(cell.ljust(width) if index == 0 else cell.rjust(width) for index, (cell, width) in enumerate(pairs))
        for pairs in (list(zip(row, widths, strict=True)) for row in rows)
    )


def main(argv: Sequence[str] | None = None) -> int:
    """Print the summary of one model, or the table of all."""
    args = summary_parser().parse_args(argv)
    if args.model is None:
        print(format_all())  # noqa: T201
        return 0
    recipe = model_recipe(args, args.num_classes or 0, given_head_settings(args))
    recipe["num_classes"] = args.num_classes or timm.get_pretrained_cfg(args.model).num_classes
    size = (args.img_size, args.img_size) if args.img_size else None
    print(format_parts(count_parts(build_model(recipe), size, args.depth)))  # noqa: T201
    return 0


if __name__ == "__main__":
    run_main(main)
