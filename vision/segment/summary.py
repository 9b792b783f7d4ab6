"""Parameters of UperNet on LV-ViT, part by part, beside the published ones.

python -m vision.segment.summary                                         # LV-ViT-S, M and L
python -m vision.segment.summary --model sot_small --decoder-channels 512    # another model
"""

from __future__ import annotations

from collections.abc import Sequence

from sot_base.command_help import show_help
from vision.segment.options import summary_parser

if __name__ == "__main__":  # before the imports that take seconds
    show_help(summary_parser)

import torch
from torch import nn

from sot_base.errors import run_main
from vision.cli.config_file import parse_args
from vision.segment.build import build_segmenter
from vision.segment.options import given_recipe

__all__ = ["PUBLISHED", "count_parts", "main"]

PUBLISHED = {"lvvit_s": 44, "lvvit_m": 77, "lvvit_l": 209}  # millions, all with 150 classes


def count_parts(model: nn.Module) -> dict[str, int]:
    """Parameters of backbone, neck, decoder, auxiliary head and all."""
    parts = {
        "backbone": [model.encoder.backbone],
        "neck": [model.encoder.neck],
        "decoder": [model.decoder, model.segmentation_head],
        "auxiliary": [] if model.aux_head is None else [model.aux_head],
        "all": [model],
    }
    return {
        name: sum(parameter.numel() for module in modules for parameter in module.parameters())
        for name, modules in parts.items()
    }


def main(argv: Sequence[str] | None = None) -> int:
    """Print the table."""
    args = parse_args(summary_parser(), argv)
    rows = [("model", "backbone M", "neck", "decoder", "auxiliary", "all", "published")]
    for name in [args.model] if args.model else PUBLISHED:
        args.model = name
        with torch.device("meta"):
            model = build_segmenter(given_recipe(args, args.num_classes))
        counts = [f"{count / 1e6:.3f}" for count in count_parts(model).values()]
        rows.append((name, *counts, str(PUBLISHED.get(name, "-"))))
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        print("  ".join(cell.rjust(width) for cell, width in zip(row, widths, strict=True)))  # noqa: T201
    return 0


if __name__ == "__main__":
    run_main(main)
