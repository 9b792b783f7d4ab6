r"""Show which words a prediction depends on, in an HTML page, a figure or the terminal.

    echo "A charming, funny film." | python -m sot_hf.visualize sst2-run
    python -m sot_hf.visualize cola-run glue_data/CoLA/dev.tsv --task CoLA --output cola.html cola.png
    python -m sot_hf.visualize sst2-run glue_data/SST-2/dev.tsv --task SST-2 --limit 200 --check --output check.png

docs/visualization.md explains the colours and the methods.
"""

from __future__ import annotations

from collections.abc import Sequence

from sot_base.command_help import show_help
from sot_hf.command_options import visualize_parser

if __name__ == "__main__":  # before the imports that take seconds
    show_help(lambda: visualize_parser(__doc__))

import torch
from transformers.utils import logging as hf_logging

from sot_base.device import choose_device
from sot_base.errors import run_main
from sot_hf.load_model import load_trained
from sot_hf.load_tokenizer import load_tokenizer, usable_length
from sot_hf.text_model import HuggingFaceTextModel
from sot_text.glue import GlueTask
from sot_text.visualization.command import run_visualize

__all__ = ["main"]


def main(arguments: Sequence[str] | None = None) -> None:
    """Visualise from the command line."""
    args = visualize_parser(__doc__).parse_args(arguments)
    hf_logging.disable_progress_bar()

    def load() -> tuple[HuggingFaceTextModel, GlueTask | None, int | None]:
        model = load_trained(args.checkpoint, dtype=torch.float32).to(choose_device(args.device))
        tokenizer = load_tokenizer(args.checkpoint, model, args.tokenizer_name)
        length = usable_length(model, tokenizer, args.max_seq_length)
        return HuggingFaceTextModel(model, tokenizer, length), None, None

    run_visualize(args, load)


if __name__ == "__main__":
    run_main(main)
