r"""Show which words a prediction depends on, in an HTML page, a figure or the terminal.

    echo "A charming, funny film." | python -m sot_hf.visualize sst2-run
    python -m sot_hf.visualize cola-run glue_data/CoLA/dev.tsv --task CoLA --output cola.html cola.png
    python -m sot_hf.visualize sst2-run glue_data/SST-2/dev.tsv --task SST-2 --limit 200 --check --output check.png

docs/visualization.md explains the colours and the methods.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from sot_base.device import choose_device
from sot_base.errors import UsageError, run_main
from sot_hf.configuration import SoTConfig
from sot_hf.error_text import model_location
from sot_hf.load_config import load_config
from sot_hf.load_model import load_weights
from sot_hf.load_tokenizer import load_tokenizer, usable_length
from sot_hf.text_model import HuggingFaceTextModel
from sot_text.glue import GlueTask
from sot_text.visualization.command import run_visualize, visualize_parser

__all__ = ["main"]


def main(arguments: Sequence[str] | None = None) -> None:
    """Visualise from the command line."""
    parser = visualize_parser("python -m sot_hf.visualize", __doc__.split("\n")[0])
    parser.add_argument("--tokenizer-name", help="folder or name of the tokenizer; default: beside the model")
    parser.add_argument(
        "--max-seq-length", type=int, help="maximum number of tokens of a text; longer texts are truncated"
    )
    args = parser.parse_args(arguments)

    def load() -> tuple[HuggingFaceTextModel, GlueTask | None, int | None]:
        config = load_config(args.checkpoint)
        if not isinstance(config, SoTConfig):
            raise UsageError(f"no trained head: {model_location(args.checkpoint)}; give a model of sot_hf.run_glue")
        device = choose_device(args.device)
        config.freeze_backbone, config.train_layers = False, None
        model = load_weights(args.checkpoint, config, dtype=torch.float32).to(device)
        tokenizer = load_tokenizer(args.checkpoint, model, args.tokenizer_name)
        length = usable_length(model, tokenizer, args.max_seq_length)
        return HuggingFaceTextModel(model, tokenizer, length), None, None

    run_visualize(args, load)


if __name__ == "__main__":
    run_main(main)
