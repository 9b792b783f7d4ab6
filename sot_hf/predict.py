r"""Predict with a trained model: reads sentences, writes label names and probabilities, line by line.

    echo "A charming, funny film." | python -m sot_hf.predict sst2-run
    python -m sot_hf.predict cola-run glue_data/CoLA/dev.tsv --task CoLA --output predictions.tsv
    python -m sot_hf.predict topics-run reviews.tsv --text-columns title,body --json
    python -m sot_hf.predict sst2-run reviews.tsv --text-columns text --precision int8

:mod:`sot_text.predict_command` describes input and output. ``--precision`` and ``--onnx`` are faster on a CPU; how far
the predictions of the first 256 rows differ from those in float32 is written to standard error.
"""

from __future__ import annotations

from collections.abc import Sequence

from sot_base.command_help import show_help
from sot_hf.command_options import predict_parser

if __name__ == "__main__":  # before the imports that take seconds
    show_help(lambda: predict_parser(__doc__))

from transformers.utils import logging as hf_logging

from sot_base.errors import UsageError, run_main
from sot_hf.predictor import TextPredictor
from sot_text.glue import GlueTask
from sot_text.precision import ComparedPredictor
from sot_text.predict_command import run_predict

__all__ = ["main"]


def main(arguments: Sequence[str] | None = None) -> None:
    """Predict from the command line."""
    args = predict_parser(__doc__).parse_args(arguments)
    hf_logging.disable_progress_bar()

    def load() -> tuple[TextPredictor | ComparedPredictor, GlueTask | None]:
        device = "cpu" if args.onnx is not None else args.device
        exact = TextPredictor(args.checkpoint, args.tokenizer_name, args.max_seq_length, device)
        if args.onnx is not None:
            return ComparedPredictor(exact.on_onnx(args.onnx), exact, "ONNX Runtime"), None
        if args.precision != "float32":
            return ComparedPredictor(exact.in_precision(args.precision), exact, args.precision), None
        return exact, None

    if args.onnx is not None and (args.precision != "float32" or args.device not in (None, "cpu")):
        raise UsageError("ONNX Runtime runs in float32 on a CPU: --onnx; leave out --precision, give --device cpu")
    run_predict(args, load)


if __name__ == "__main__":
    run_main(main)
