"""The hyper-parameters of each GLUE task and kind of encoder, from one table with their sources.

The table is ``sot_text/tables/hyperparameters.tsv``. Its columns:

* ``task``: GLUE's name, or ``any``;
* ``encoder``: the family (:func:`family`): ``roberta``, ``bert``, ``minilm``, ``gpt``, or ``any``;
* ``backbone``: ``tuned``; a ``frozen`` row (``--freeze-backbone``) changes the cells it has of the tuned one;
* ``lr``: peak learning rate; ``batch_size``: sentences in an update; ``max_epoch``; ``warmup``: part of the updates;
* ``weight_decay``, ``adam_beta2``, ``adam_eps``, ``clip_norm`` (0: gradients are not clipped): AdamW's, whose first
  beta is 0.9; the learning rate falls linearly to 0 after the warm-up;
* ``max_length``: tokens of a sample, special ones included; ``-``: what the encoder takes;
* ``mgcrp_heads``, ``mgcrp_q``, ``mgcrp_k``, ``head_dropout``: options of the head MGCrP alone;
* ``source``: where the values come from.

``-`` stands for no value: then the option keeps its default. ``python -m sot_text.hyperparameters --task RTE
--encoder roberta.base [--freeze-backbone] [--format json|lines]`` prints a row; ``lines`` gives ``name<TAB>value``.
"""

from __future__ import annotations

import argparse
import csv
import dataclasses
import json
import os
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sot_base.errors import UsageError, run_main
from sot_text.glue import get_task

__all__ = ["Hyperparameters", "family", "get_hyperparameters", "read_table"]

TABLES = Path(__file__).resolve().parent / "tables"
TABLE = TABLES / "hyperparameters.tsv"
KEYS = ("task", "encoder", "backbone")
TYPES = {
    "lr": float,
    "batch_size": int,
    "max_epoch": int,
    "warmup": float,
    "weight_decay": float,
    "adam_beta2": float,
    "adam_eps": float,
    "clip_norm": float,
    "max_length": int,
    "mgcrp_heads": int,
    "mgcrp_q": int,
    "mgcrp_k": int,
    "head_dropout": float,
    "source": str,
}
FAMILIES = {  # by how a name begins
    "bert": "bert",
    "spanbert": "bert",
    "minilm": "minilm",
    "roberta": "roberta",
    "gpt": "gpt",
    "gpt2": "gpt",
    "openai": "gpt",
}
HUGGING_FACE = "hf:"  # before a folder or a name on the Hugging Face Hub


@dataclass(frozen=True)
class Hyperparameters:
    """How a head is trained on a task.

    Attributes:
        lr: Peak learning rate.
        batch_size: Sentences in an update.
        max_epoch: Epochs.
        warmup: Part of the updates in which the learning rate rises, in [0, 1].
        weight_decay: Weight decay, decoupled (AdamW).
        adam_beta2: Adam's second beta; the first is 0.9.
        adam_eps: Adam's epsilon.
        clip_norm: Largest norm of the gradients; 0: they are not clipped.
        max_length: Tokens of a sample, special ones included; None: what the encoder takes.
        mgcrp_heads: Heads of MGCrP; None: the option's default, as for the next three.
        mgcrp_q: Rows of each head's matrix.
        mgcrp_k: Columns of each head's matrix.
        head_dropout: Dropout on MGCrP's output.
        source: Where the values come from.
    """

    lr: float
    batch_size: int
    max_epoch: int
    warmup: float
    weight_decay: float
    adam_beta2: float
    adam_eps: float
    clip_norm: float
    max_length: int | None
    mgcrp_heads: int | None
    mgcrp_q: int | None
    mgcrp_k: int | None
    head_dropout: float | None
    source: str

    @property
    def head_args(self) -> list[str]:
        """Options of the head MGCrP, as every side of the toolkit spells them."""
        values = {name: getattr(self, name) for name in ("mgcrp_heads", "mgcrp_q", "mgcrp_k", "head_dropout")}
        given = {name: value for name, value in values.items() if value is not None}
        return [word for name, value in given.items() for word in (f"--{name.replace('_', '-')}", str(value))]


def family(encoder: str) -> str:
    """Return the family of an encoder, ``roberta``, ``bert``, ``minilm`` or ``gpt``.

    A name (``bert.base.cased``, ``roberta-base``, ``hf:openai-community/openai-gpt``) has that of its first word;
    SpanBERT's is ``bert``. So is that of a path beside which there is a ``vocab.txt`` (a Hugging Face BERT, or its
    conversion). All else, ``scratch:...`` too, has RoBERTa's.
    """
    first = re.split(r"[.-]", encoder)[0]
    if encoder.startswith(HUGGING_FACE):
        encoder = encoder.removeprefix(HUGGING_FACE)
        first = re.split(r"[.-]", Path(encoder).name.lower())[0]
    if first in FAMILIES:
        return FAMILIES[first]
    path = Path(encoder)
    folder = path if path.is_dir() else path.parent
    has_words = any((folder / name).is_file() for name in ("vocab.txt", "tokenizer/vocab.txt"))
    return "bert" if path.exists() and has_words else "roberta"


def read_table(path: str | os.PathLike[str], types: dict[str, type], keys: Sequence[str]) -> list[dict[str, Any]]:
    """Read a table of the toolkit: a header line, cells between tabs, ``-`` for no value.

    Args:
        path: The file.
        types: The columns that hold values, and their types.
        keys: The other columns, which hold text.

    Raises:
        UsageError: If a column is missing or unknown, or a cell cannot be read; it names the line.
    """
    rows = []
    with open(path, encoding="utf-8", newline="") as file:
        reader = csv.DictReader(file, delimiter="\t", quoting=csv.QUOTE_NONE)
        names = reader.fieldnames or []
        wrong = set(names) ^ {*keys, *types}
        if wrong:
            raise UsageError(f"columns are missing or unknown: {path}, line 1; correct {', '.join(sorted(wrong))}")
        for row in reader:
            try:
                values = {name: None if row[name] == "-" else kind(row[name]) for name, kind in types.items()}
            except (TypeError, ValueError) as error:
                raise UsageError(
                    f"a cell cannot be read ({error}): {path}, line {reader.line_num}; correct it"
                ) from None
            rows.append({**{key: row[key] for key in keys}, **values})
    return rows


def get_hyperparameters(task: str, encoder: str, frozen: bool = False) -> Hyperparameters:
    """Look up a task and an encoder.

    Args:
        task: A GLUE task, in any spelling that :func:`sot_text.glue.get_task` knows.
        encoder: A name or a path, as ``python -m sot_fairseq.encoders`` takes it.
        frozen: Whether the head alone is trained.

    Raises:
        UsageError: If there is no such task, or the table has no row for it.
    """
    name, kind = get_task(task).name, family(encoder)
    found: dict[str, Any] = {}
    rows = read_table(TABLE, TYPES, KEYS)
    for backbone in ("tuned", "frozen") if frozen else ("tuned",):
        matches = (
            row
            for row in rows
            if row["task"] in (name, "any") and row["encoder"] in (kind, "any") and row["backbone"] == backbone
        )
        row = next(matches, None)
        if row is None:
            raise UsageError(f"no row for {name}, {kind}, {backbone}: {TABLE}; add one")
        sources = [source for source in (row["source"], found.get("source")) if source]
        found |= {key: value for key, value in row.items() if key in TYPES and (value is not None or key not in found)}
        found["source"] = "; the rest: ".join(sources)
    return Hyperparameters(**found)


def main(arguments: Sequence[str] | None = None) -> None:
    """Print the values for a task and an encoder."""
    parser = argparse.ArgumentParser(prog="python -m sot_text.hyperparameters", description=__doc__.split("\n")[0])
    parser.add_argument("--task", required=True, help="a GLUE task")
    parser.add_argument("--encoder", required=True, help="a name, a path, or scratch:<layers>x<dim>")
    parser.add_argument("--freeze-backbone", action="store_true", help="the head alone is trained")
    parser.add_argument("--format", choices=("json", "lines"), default="json", help="lines: name<TAB>value")
    args = parser.parse_args(arguments)
    values = dataclasses.asdict(get_hyperparameters(args.task, args.encoder, args.freeze_backbone))
    lines = [f"{name}\t{value}" for name, value in values.items() if value is not None]
    print(json.dumps(values, indent=2) if args.format == "json" else "\n".join(lines))  # noqa: T201


if __name__ == "__main__":
    run_main(main)
