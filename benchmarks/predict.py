"""Time of predicting a file with `sot_hf.predict`, compared with transformers' text-classification pipeline.

The pipeline runs the same model in batches in the order of the rows, `sot_hf.predict` in float32, in other precisions
and, with ``--onnx``, on ONNX Runtime. They alternate; the median counts. With one CPU thread, the CPU time of that
thread, else wall time. The accuracy is that of all rows, if the file has labels.

Run ``python -m benchmarks.predict MODEL FILE --task SST-2``.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
from transformers import pipeline
from transformers.utils import logging as hf_logging

from benchmarks.timing import describe_device, median_seconds
from sot_base.errors import run_main
from sot_base.markdown import markdown_table
from sot_hf.predictor import PRECISIONS, TextPredictor
from sot_text.glue import get_task
from sot_text.read_input import read_task_file


def main(argv: Sequence[str] | None = None) -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", help="folder of a trained model")
    parser.add_argument("file", type=Path, help="TSV file of the task, of single texts")
    parser.add_argument("--task", required=True, help="GLUE task of the file")
    parser.add_argument("--rows", type=int, help="use the first rows only; default: all")
    parser.add_argument("--batch-size", type=int, default=64)
    parser.add_argument("--onnx", help="also run this file of sot_hf.export")
    parser.add_argument("--repetitions", type=int, default=3)
    parser.add_argument("--threads", type=int, help="CPU threads; default: torch's choice")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    args = parser.parse_args(argv)
    hf_logging.set_verbosity_error()
    hf_logging.disable_progress_bar()
    if args.threads:
        torch.set_num_threads(args.threads)
    label = get_task(args.task).splits[0].label_column
    table, columns = read_task_file(args.file, get_task(args.task), (label,))
    texts = table.columns[columns[0]][: args.rows]
    truths = table.columns[label][: args.rows] if label in table.columns else None
    exact = TextPredictor(args.model, device=args.device)
    predictors = {
        precision: exact.in_precision(precision)
        for precision in PRECISIONS
        if precision != "int8" or exact.device.type == "cpu"
    }
    if args.onnx:
        predictors["ONNX Runtime"] = exact.on_onnx(args.onnx)
    peer = pipeline("text-classification", model=exact.model, tokenizer=exact.tokenizer, device=exact.device)
    steps = {"transformers pipeline": lambda: peer(texts, batch_size=args.batch_size, truncation=True)}
    rows = [(text,) for text in texts]
    found = {}

    def predict(name: str) -> None:
        found[name] = predictors[name].predict(rows, args.batch_size)

    steps |= {name: lambda name=name: predict(name) for name in predictors}
    times = median_seconds(steps, args.repetitions, exact.device)
    base = times["transformers pipeline"]
    lines = [("", "rows per second", "time, relative", "labels as in float32", "accuracy")]
    for name, time in times.items():
        cells = (name, f"{len(rows) / time:.0f}", f"{time / base:.2f}")
        if name not in found:
            lines.append((*cells, "", ""))
            continue
        labels = np.array([str(prediction.label) for prediction in found[name]])
        same = sum(labels == [str(prediction.label) for prediction in found["float32"]])
        accuracy = "" if truths is None else f"{100 * np.mean(labels == truths):.2f}"
        lines.append((*cells, f"{same} of {len(labels)}", accuracy))
    where = describe_device(exact.device)
    print(f"{where}, {len(rows)} rows, batch {args.batch_size}, median of {args.repetitions}\n")  # noqa: T201
    print(markdown_table(lines))  # noqa: T201


if __name__ == "__main__":
    run_main(main)
