r"""Show which words a prediction depends on, in an HTML page, a figure or the terminal.

    echo "A charming, funny film." | python -m sot_fairseq.visualize out/sst2/mgcrp/seed-1
    python -m sot_fairseq.visualize out/cola/mgcrp/seed-1 glue_data/CoLA/dev.tsv --output cola.html cola.png
    python -m sot_fairseq.visualize out/sst2/mgcrp/seed-1 glue_data/SST-2/dev.tsv --limit 200 --check --output check.png

docs/visualization.md explains the colours and the methods.
"""

from __future__ import annotations

from collections.abc import Sequence

from sot_base.command_help import show_help
from sot_fairseq.command_options import visualize_parser

if __name__ == "__main__":  # before the imports that take seconds
    show_help(lambda: visualize_parser(__doc__))

from sot_base.errors import run_main
from sot_fairseq.prediction.predictor import from_pretrained
from sot_fairseq.prediction.text_model import FairseqTextModel
from sot_text.glue import GLUE_TASKS, GlueTask
from sot_text.visualization.command import run_visualize

__all__ = ["main"]


def main(arguments: Sequence[str] | None = None) -> None:
    """Visualise from the command line."""
    args = visualize_parser(__doc__).parse_args(arguments)

    def load() -> tuple[FairseqTextModel, GlueTask | None, int | None]:
        predictor = from_pretrained(args.checkpoint, head=args.head, data=args.data, device=args.device)
        task = GLUE_TASKS.get(predictor.header.task) if predictor.header is not None else None
        return FairseqTextModel(predictor), task, predictor.num_inputs

    run_visualize(args, load)


if __name__ == "__main__":
    run_main(main)
