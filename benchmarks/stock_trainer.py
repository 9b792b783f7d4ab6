"""transformers' Trainer as its users write it: the peer of ``python -m sot_hf.run_glue``.

    python -m benchmarks.stock_trainer --model DIR --data-dir glue_data/CoLA --output-dir OUTPUT

`AutoModelForSequenceClassification`, `DataCollatorWithPadding`, an evaluation and a checkpoint after every epoch, the
best model at the end: what ``run_glue`` does by default. CoLA only.
"""

from __future__ import annotations

import argparse
import csv
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from transformers import (
    AutoModelForSequenceClassification,
    AutoTokenizer,
    DataCollatorWithPadding,
    EvalPrediction,
    Trainer,
    TrainingArguments,
)

__all__ = ["Rows", "make_trainer", "read_rows"]


class Rows(torch.utils.data.Dataset):
    """Tokenized rows with their labels.

    Args:
        encodings: What the tokenizer gives for a list of texts.
        labels: Of each row.
    """

    def __init__(self, encodings: Any, labels: Sequence[int]) -> None:
        self.encodings, self.labels = encodings, labels

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, index: int) -> dict[str, Any]:
        row = {name: values[index] for name, values in self.encodings.items()}
        return row | {"labels": self.labels[index]}


def read_rows(path: Path, tokenizer: Any, count: int | None = None) -> Rows:
    """The first rows of a file of CoLA."""
    with path.open(encoding="utf-8", newline="") as file:
        cells = list(csv.reader(file, delimiter="\t", quoting=csv.QUOTE_NONE))[:count]
    encodings = tokenizer([row[3] for row in cells], truncation=True, max_length=128)
    return Rows(encodings, [int(row[1]) for row in cells])


def make_trainer(model: Any, tokenizer: Any, train: Rows, valid: Rows | None, **arguments: Any) -> Trainer:
    """A Trainer with these `TrainingArguments`."""
    return Trainer(
        model=model,
        args=TrainingArguments(report_to="none", disable_tqdm=True, **arguments),
        train_dataset=train,
        eval_dataset=valid,
        data_collator=DataCollatorWithPadding(tokenizer),
        processing_class=tokenizer,
        compute_metrics=_metrics,
    )


def _metrics(outputs: EvalPrediction) -> dict[str, float]:
    from sklearn.metrics import accuracy_score, matthews_corrcoef

    found = outputs.predictions.argmax(axis=-1)
    return {"accuracy": accuracy_score(outputs.label_ids, found), "mcc": matthews_corrcoef(outputs.label_ids, found)}


def main(argv: Sequence[str] | None = None) -> None:
    """Train and evaluate."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", required=True)
    parser.add_argument("--data-dir", type=Path, required=True)
    parser.add_argument("--output-dir", required=True)
    parser.add_argument("--rows", type=int)
    parser.add_argument("--batch-size", type=int, default=32)
    parser.add_argument("--max-steps", type=int, default=-1)
    parser.add_argument("--group-by-length", action="store_true")
    parser.add_argument("--no-evaluation", action="store_true")
    parser.add_argument("--use-cpu", action="store_true")
    args = parser.parse_args(argv)
    tokenizer = AutoTokenizer.from_pretrained(args.model)
    model = AutoModelForSequenceClassification.from_pretrained(args.model, num_labels=2)
    trainer = make_trainer(
        *(model, tokenizer),
        read_rows(args.data_dir / "train.tsv", tokenizer, args.rows),
        read_rows(args.data_dir / "dev.tsv", tokenizer),
        output_dir=args.output_dir,
        per_device_train_batch_size=args.batch_size,
        num_train_epochs=1,
        max_steps=args.max_steps,
        eval_strategy="no" if args.no_evaluation else "epoch",
        save_strategy="epoch",
        save_total_limit=2,
        load_best_model_at_end=not args.no_evaluation,
        metric_for_best_model=None if args.no_evaluation else "mcc",
        train_sampling_strategy="group_by_length" if args.group_by_length else "random",
        use_cpu=args.use_cpu,
    )
    trainer.train()
    trainer.save_model()
    if not args.no_evaluation:
        print(trainer.evaluate())  # noqa: T201


if __name__ == "__main__":
    main()
