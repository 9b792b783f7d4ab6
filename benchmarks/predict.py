"""Time of predicting texts on both text sides, compared with transformers' text-classification pipeline.

The pipeline runs the same model as `sot_hf.predict` in batches in the order of the rows. `sot_hf.predict` is measured
in float32, in other precisions and, with ``--onnx``, on ONNX Runtime; `sot_fairseq.predict` runs the model converted to
fairseq, in the same precisions. They alternate; the median counts. With one CPU thread, the CPU time of that thread,
else wall time. The accuracy is that of all rows, if the file has labels.

Without a model it is MiniLM with an untrained head; without a file, texts of one to eight sentences of the demo corpus.

Run ``python -m benchmarks.predict MODEL FILE --task SST-2``.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
from transformers import pipeline
from transformers.utils import logging as hf_logging

from benchmarks.fairseq_runs import quiet
from benchmarks.report import Report, Row, benchmark_parser
from benchmarks.timing import take_turns
from benchmarks.untrained import mixed_texts, save_models
from sot_base.errors import UsageError, run_main
from sot_fairseq import from_pretrained
from sot_hf.convert import to_fairseq
from sot_hf.predictor import TextPredictor
from sot_text.command_options import PRECISIONS
from sot_text.glue import get_task
from sot_text.minilm import find_minilm
from sot_text.read_input import read_task_file

PEER = "transformers pipeline"


@quiet()
def main(argv: Sequence[str] | None = None) -> None:
    """Print the table."""
    parser = benchmark_parser(__doc__, repetitions=3, quick="16 texts, one repetition")
    parser.add_argument("model", nargs="?", help="folder of a trained model; default: MiniLM with an untrained head")
    parser.add_argument("file", nargs="?", type=Path, help="TSV file of the task, of single texts; default: demo texts")
    parser.add_argument("--task", help="GLUE task of the file")
    parser.add_argument(
        "--rows", type=int, default=None, help="use the first rows only; default: all, or 500 demo texts"
    )
    parser.add_argument("--batch-size", type=int, default=64)
    parser.add_argument("--onnx", help="also run this file of sot_hf.export")
    args = parser.parse_args(argv)
    if args.file and not args.task:
        raise UsageError(f"no task for {args.file}: --task; give the GLUE task of the file")
    if args.quick:
        args.rows, args.repetitions = 16, 1
    hf_logging.set_verbosity_error()
    hf_logging.disable_progress_bar()
    texts, truths = mixed_texts(args.rows or 500), None
    if args.file:
        label = get_task(args.task).splits[0].label_column
        table, columns = read_task_file(args.file, get_task(args.task), (label,))
        texts = table.columns[columns[0]][: args.rows]
        truths = table.columns[label][: args.rows] if label in table.columns else None
    report = Report(args, f"{len(texts)} rows, batch {args.batch_size}, median of {args.repetitions}")
    with tempfile.TemporaryDirectory() as folder:
        model = args.model or str(save_models(find_minilm(), Path(folder))["sot_hf"])
        rows = compare(report, model, texts, truths, args.batch_size, args.repetitions, args.onnx)
    report.table(f"Prediction; ratios to {PEER}", rows)
    report.save()


def compare(
    report: Report,
    model: str,
    texts: Sequence[str],
    truths: Sequence[str] | None,
    batch_size: int,
    repetitions: int,
    onnx: str | None,
) -> list[Row]:
    """Rows of the table."""
    exact = TextPredictor(model, device=report.device)
    precisions = [name for name in PRECISIONS if name != "int8" or exact.device.type == "cpu"]
    predictors = {f"sot_hf, {name}": exact.in_precision(name) for name in precisions}
    if onnx:
        predictors["sot_hf, ONNX Runtime"] = exact.on_onnx(onnx)
    with tempfile.TemporaryDirectory() as folder:
        to_fairseq(Path(model), Path(folder, "fairseq"))
        converted = from_pretrained(Path(folder, "fairseq"), device=report.device)
    predictors |= {f"sot_fairseq, {name}": converted.in_precision(name) for name in precisions}
    peer = pipeline("text-classification", model=exact.model, tokenizer=exact.tokenizer, device=exact.device)
    found: dict[str, list[str]] = {}

    def run_pipeline() -> None:
        outputs = peer(list(texts), batch_size=batch_size, truncation=True, max_length=exact.max_length)
        found[PEER] = [output["label"] for output in outputs]

    def predict(name: str) -> None:
        found[name] = [str(row.label) for row in predictors[name].predict([(text,) for text in texts], batch_size)]

    steps: dict[str, Callable[[], None]] = {PEER: run_pipeline}
    steps |= {name: lambda name=name: predict(name) for name in predictors}
    turns = take_turns(steps, repetitions, exact.device)
    return [
        {
            "": name,
            "rows per second": len(texts) / turns.median(name),
            "ratio": turns.ratio(name, PEER),
            "labels as the pipeline's": sum(a == b for a, b in zip(found[name], found[PEER], strict=True)),
            "accuracy": None if truths is None else 100 * float(np.mean(np.array(found[name]) == np.array(truths))),
        }
        for name in steps
    ]


if __name__ == "__main__":
    run_main(main)
