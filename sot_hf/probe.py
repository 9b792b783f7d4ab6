r"""Train heads on the stored token states of a frozen Hugging Face encoder or decoder, and save the best as a model.

    python -m sot_hf.probe --encoder minilm --task SST-2 --data-dir GLUE_DIR --output-dir out/probe-sst2 \
        --heads cls mgcrp --lr 3e-4 1e-3 3e-3
    python -m sot_hf.probe --encoder bert-base-cased --task CoLA --data-dir GLUE_DIR --output-dir out/probe-cola \
        --heads mgcrp mgcrp-words attention --layers 8 10 12
    python -m sot_hf.probe --encoder minilm --task SST-2 --data-dir GLUE_DIR --output-dir out/top2-sst2 \
        --heads mgcrp --train-layers 2 --encoder-lr-scale 0.02 0.05 0.1

The encoder is ``minilm``, ``gpt``, a folder or a name on the Hugging Face Hub. The first run writes its token states to
a store; later ones on the same texts and encoder read them from there, without running the encoder. docs/probing.md
describes heads, options and the table. ``OUTPUT_DIR/model`` can be read by ``from_pretrained``, `sot_hf.run_glue` and
`sot_hf.export`.
"""

from __future__ import annotations

import argparse
import logging
import sys
from collections.abc import Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

from sot_base.command_help import show_help
from sot_hf.command_options import probe_parser

if __name__ == "__main__":  # before the imports that take seconds
    show_help(lambda: probe_parser(__doc__))

import numpy as np
from torch import Tensor, nn
from transformers.utils import logging as hf_logging

from sot_base.atomic import atomic_folder
from sot_base.device import choose_device
from sot_base.errors import run_main
from sot_hf.data import TextDataset, read_split, read_task, task_with_labels
from sot_hf.load_model import MULTI_LABEL
from sot_hf.token_states import MAX_TOKENS, TextEncoder, rows_digest
from sot_probe.command import check_options, run_probe
from sot_probe.fingerprint import array_digest
from sot_probe.grid import ProbeSettings
from sot_probe.layer_head import LayerHead
from sot_probe.objective import Kind
from sot_probe.store_writer import SplitPlan, plan_batches
from sot_probe.trainee import Optimize, adamw
from sot_text.command_options import data_words
from sot_text.probe_data import ProbeMetrics
from sot_text.splits import find_data

__all__ = ["HuggingFaceProbe", "main"]

CHECKED = 4  # rows on which copies of the top layers are checked
ENCODING = 1  # increased when the states of an encoder change, so that old ones are not reused


class HuggingFaceProbe(ProbeMetrics):
    """A Hugging Face backbone and the TSV files of a task, for `sot_probe.command.run_probe`.

    Args:
        args: The command line.

    Raises:
        UsageError: for mistakes in the options or the files.
    """

    command: Sequence[str] = ("python", "-m", "sot_hf.probe")
    optimize: Optimize = staticmethod(adamw)

    def __init__(self, args: argparse.Namespace) -> None:
        own = (args.text_columns, args.label_column, args.labels, args.regression, args.multi_label)
        task = read_task(args.task, *own)
        folder = find_data(task, Path(args.data_dir), "--data-dir")
        self.glue = task = task_with_labels(task, folder, None)
        super().__init__(task.metrics, task.num_classes, task.labels)
        self.encoder = TextEncoder(
            *(args.encoder, args.layers, args.max_length, task.num_inputs == 2, choose_device(args.device)),
            train_layers=args.train_layers,
        )
        self.layers, self.task, self.main_metric = self.encoder.layers, task.name, task.main_metric
        self.kind: Kind = "numbers" if task.regression else "sets" if task.multi_label else "classes"
        self.name = f"{task.name}-{Path(args.encoder).name}"
        self.words = ["--encoder", args.encoder, *data_words(args)]
        splits = [split for split in task.splits if not split.is_test]
        self.rows: dict[str, TextDataset] = {
            Path(split.file).stem: read_split(task, split, folder, self.encoder.tokenizer, self.encoder.max_length)
            for split in splits
        }
        self.targets: dict[str, np.ndarray] = {name: _targets(rows) for name, rows in self.rows.items()}

    def keep(self, split: str, rows: np.ndarray) -> None:
        """Use only these rows of a split; to be called before anything is encoded."""
        encodings = self.rows[split].encodings
        self.targets[split] = self.targets[split][rows]
        self.rows[split] = TextDataset([encodings[row] for row in rows.tolist()], self.targets[split])

    def describe(self) -> dict[str, Any]:
        texts = {name: array_digest([np.array(rows_digest(rows.encodings))]) for name, rows in self.rows.items()}
        return {"encoding": ENCODING, **self.encoder.describe(), "texts": texts}

    def create_encoder(self) -> _Encoding:
        return _Encoding(self.encoder, self.rows)

    def create_head(self, settings: Mapping[str, Any], start: Mapping[str, Tensor]) -> nn.Module:
        return self.encoder.create_head(settings, self.num_classes, start)

    def create_top_layers(self, count: int) -> nn.Module:
        return self.encoder.create_top_layers(count, next(iter(self.rows.values())).encodings[:CHECKED])

    def save_model(self, head: LayerHead, setting: ProbeSettings, folder: Path) -> None:
        names = dict(enumerate(self.labels or ["score"]))
        problems = {"numbers": "regression", "sets": MULTI_LABEL, "classes": "single_label_classification"}
        model = self.encoder.model_with(head, setting.head_settings, names, problems[self.kind])
        with atomic_folder(folder) as temporary:
            self.encoder.save(model, temporary)


class _Encoding:
    """The encoder over the rows of all splits, see `sot_probe.store_writer.StateEncoder`."""

    def __init__(self, encoder: TextEncoder, rows: Mapping[str, TextDataset]) -> None:
        self.encoder, self.rows = encoder, rows
        self.layers = [f"layer-{layer}" for layer in encoder.layers]
        self.embed_dim, self.start = encoder.embed_dim, encoder.start

    @cached_property
    def plans(self) -> dict[str, SplitPlan]:
        """The batches of each split, of rows of similar length."""
        lengths = {
            name: np.array([len(row["input_ids"]) for row in rows.encodings]) for name, rows in self.rows.items()
        }
        return {name: SplitPlan(counts, plan_batches(counts, MAX_TOKENS)) for name, counts in lengths.items()}

    def encode(self, split: str, rows: np.ndarray) -> list[Tensor]:
        """Encode rows."""
        return self.encoder.encode([self.rows[split].encodings[row] for row in rows.tolist()])


def _targets(rows: TextDataset) -> np.ndarray:
    if rows.targets is None:
        raise ValueError("a split without labels")
    return rows.targets.astype(bool) if rows.targets.ndim == 2 else rows.targets


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command line.

    Returns:
        The exit status: 1 if some of the trainings failed.
    """
    args = probe_parser(__doc__).parse_args(sys.argv[1:] if arguments is None else arguments)
    logging.basicConfig(level=logging.WARNING, format="%(levelname)s: %(message)s")
    hf_logging.set_verbosity_error()
    hf_logging.disable_progress_bar()
    check_options(args, args.regression)
    return run_probe(args, HuggingFaceProbe(args))


if __name__ == "__main__":
    run_main(main)
