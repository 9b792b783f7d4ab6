r"""Predict with a fine-tuned checkpoint: reads sentences, writes label names and probabilities, line by line.

    echo "A cat sleeps." | python -m sot_fairseq.predict out/sst2/seed-1
    python -m sot_fairseq.predict out/rte/seed-1 glue_data/RTE/dev.tsv --output predictions.tsv
    python -m sot_fairseq.predict out/topics reviews.tsv --text-columns title,body --json
    python -m sot_fairseq.predict out/topics reviews.tsv --text-columns title,body --precision int8
    python -m sot_fairseq.predict out/mnli/seed-1 glue_data/MNLI/test_mismatched.tsv --submission submission

:mod:`sot_text.predict_command` describes input and output. ``--precision`` is faster on a CPU; how far the
predictions of the first 256 rows differ from those in float32 is written to standard error.
"""

from __future__ import annotations

from collections.abc import Sequence

from sot_base.command_help import show_help
from sot_fairseq.command_options import predict_parser

if __name__ == "__main__":  # before the imports that take seconds
    show_help(lambda: predict_parser(__doc__))

from sot_base.errors import run_main
from sot_fairseq.prediction.predictor import SentencePredictor, from_pretrained
from sot_text.glue import GLUE_TASKS, GlueTask
from sot_text.precision import ComparedPredictor
from sot_text.predict_command import run_predict

__all__ = ["main"]


def main(arguments: Sequence[str] | None = None) -> None:
    """Predict from the command line."""
    args = predict_parser(__doc__).parse_args(arguments)

    def load() -> tuple[SentencePredictor | ComparedPredictor, GlueTask | None]:
        exact = from_pretrained(args.checkpoint, head=args.head, data=args.data, device=args.device)
        task = None if exact.header is None else GLUE_TASKS.get(exact.header.task)
        if args.precision != "float32":
            return ComparedPredictor(exact.in_precision(args.precision), exact, args.precision), task
        return exact, task

    run_predict(args, load)


if __name__ == "__main__":
    run_main(main)
