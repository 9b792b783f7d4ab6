r"""Train heads on the stored token states of a frozen encoder, and save the best as a model.

    python -m sot_fairseq.probe --encoder minilm --task SST-2 --data-dir GLUE_DIR --output-dir out/probe-sst2 \
        --heads cls mgcrp --lr 3e-4 1e-3 3e-3 --seeds 1 2 3 4 5
    python -m sot_fairseq.probe --encoder minilm --task CoLA --data-dir GLUE_DIR --output-dir out/probe-cola \
        --heads mgcrp mgcrp-words --mgcrp-heads 1 2 4 8 --layers 3 6

Every run preprocesses the data like ``python -m sot_fairseq.preprocess``, into ``OUTPUT_DIR/data``. The first run
writes the token states of the encoder to the store (``--cache-dir``); later ones on the same texts and encoder
read them from there, and an epoch takes seconds on a CPU. Encoder, heads and initial weights are those of
``fairseq-train --freeze-backbone``; the schedule is that of ``glue_scripts``, by default 8 epochs and batches of 32.
docs/probing.md describes heads, options and the table. ``OUTPUT_DIR/model`` can be read by
``sot_fairseq.from_pretrained``, `sot_fairseq.predict` and `sot_fairseq.evaluate`.

The store has an entry for each combination of encoder (the content of its checkpoint; a ``scratch:`` encoder is
initialised with seed 1), tokenized texts, layers and ``--cache-dtype``. Entries can be deleted at any time.
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from sot_base.command_help import show_help
from sot_fairseq.command_options import probe_parser

if __name__ == "__main__":  # before the imports that take seconds
    show_help(lambda: probe_parser(__doc__))

import numpy as np
import torch
from fairseq.optim.adam import Adam
from torch import Tensor, nn

from sot_base.device import choose_device
from sot_base.errors import UsageError, run_main
from sot_fairseq import encoders, preprocess
from sot_fairseq.probing.encoding import ProbeTask
from sot_fairseq.probing.saving import save_classifier
from sot_probe.command import check_options, run_probe
from sot_probe.grid import ProbeSettings
from sot_probe.layer_head import LayerHead
from sot_probe.objective import Kind
from sot_probe.store_writer import StateEncoder
from sot_probe.trainee import Groups, TrainingSettings
from sot_text.command_options import data_words
from sot_text.probe_data import ProbeMetrics

__all__ = ["FairseqProbe", "main"]


class FairseqProbe(ProbeMetrics):
    """A fairseq encoder and the TSV files of a task, for `sot_probe.command.run_probe`.

    Args:
        args: The command line.

    Raises:
        UsageError: for mistakes in the options or the files.
    """

    command: Sequence[str] = ("python", "-m", "sot_fairseq.probe")

    def __init__(self, args: argparse.Namespace) -> None:
        encoder, data, words = encoders.find(args.encoder), args.output_dir / "data", data_words(args)
        preprocess.main([*words, "--output-dir", str(data), *encoder.preprocess_args])
        self.words = ["--encoder", args.encoder, *words]
        self.probed = ProbeTask(encoder, data, args.layers, choose_device(args.device), args.train_layers)
        header = self.probed.header
        super().__init__(header.metrics, header.num_classes, header.labels)
        self.layers, self.task, self.main_metric = self.probed.layers, header.task, header.main_metric
        self.kind: Kind = "numbers" if header.regression else "sets" if header.multi_label else "classes"
        self.name = f"{header.task}-{Path(args.encoder).name}"
        self.targets: dict[str, np.ndarray] = {name: rows.targets for name, rows in self.probed.splits.items()}
        below_top = args.mix_layers or self.layers != [self.probed.cfg.model.encoder_layers]
        if args.save != "none" and below_top and not args.train_layers:
            raise UsageError("fairseq's model reads the last layer: --layers; give --save none, or use sot_hf.probe")

    def describe(self) -> dict[str, Any]:
        return self.probed.describe()

    def create_encoder(self) -> StateEncoder:
        return self.probed.create_encoder()

    def create_head(self, settings: Mapping[str, Any], start: Mapping[str, Tensor]) -> nn.Module:
        return self.probed.create_head(settings, start)

    def create_top_layers(self, count: int) -> nn.Module:
        return self.probed.create_top_layers(count)

    def optimize(self, groups: Groups, settings: TrainingSettings) -> torch.optim.Optimizer:
        """Fairseq's Adam with the settings of ``glue_scripts``."""
        return Adam(groups, settings.lr, (0.9, 0.98), 1e-6, settings.weight_decay)

    def save_model(self, head: LayerHead, setting: ProbeSettings, folder: Path) -> None:
        save_classifier(self.probed, head, setting.head_settings, folder)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command line.

    Returns:
        The exit status: 1 if some of the trainings failed.
    """
    args = probe_parser(__doc__).parse_args(arguments)
    check_options(args, args.regression)
    return run_probe(args, FairseqProbe(args))


if __name__ == "__main__":
    run_main(main)
