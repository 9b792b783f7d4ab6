"""Predict the lines of a file by a loop over transformers' pipeline: the peer of ``python -m sot_hf.predict``.

    python -m benchmarks.pipeline_loop --model DIR --output FILE LINES

`AutoModelForSequenceClassification` in a ``text-classification`` pipeline that reads the lines as it goes.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from pathlib import Path

from transformers import AutoModelForSequenceClassification, AutoTokenizer, pipeline


def main() -> None:
    """Write the label of every line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("lines", type=Path)
    parser.add_argument("--model", required=True)
    parser.add_argument("--output", type=Path, required=True)
    parser.add_argument("--batch-size", type=int, default=64)
    parser.add_argument("--device", default="cpu")
    args = parser.parse_args()
    model = AutoModelForSequenceClassification.from_pretrained(args.model)
    tokenizer = AutoTokenizer.from_pretrained(args.model)
    classify = pipeline("text-classification", model=model, tokenizer=tokenizer, device=args.device)

    def texts() -> Iterator[str]:
        with args.lines.open(encoding="utf-8") as file:
            for line in file:
                yield line.rstrip("\n")

    with args.output.open("w", encoding="utf-8") as output:
        for found in classify(texts(), batch_size=args.batch_size, truncation=True):
            output.write(f"{found['label']}\t{found['score']:.4f}\n")


if __name__ == "__main__":
    main()
