"""Trainings of fairseq inside this process: the toolkit's task and criterion, and fairseq's own."""

from __future__ import annotations

import contextlib
import io
import itertools
import logging
import warnings
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from fairseq import options, tasks, utils
from fairseq.dataclass.utils import convert_namespace_to_omegaconf
from fairseq.logging import metrics
from fairseq.trainer import Trainer
from fairseq_cli.train import validate

from sot_fairseq import preprocess
from sot_text.glue import get_task
from sot_text.minilm import find_minilm
from sot_text.splits import find_data

__all__ = ["OURS", "STOCK", "FairseqRun", "open_run", "preprocess_rows", "quiet", "train_words"]

STOCK, OURS = "sentence_prediction", "sentence_prediction_mgcrp"  # tasks and criteria


class FairseqRun(NamedTuple):
    """What ``fairseq-train`` would train with: its configuration, trainer, task and batches."""

    cfg: Any
    trainer: Trainer
    task: Any
    batches: Any

    def validate(self) -> dict[str, float]:
        """Loss and accuracy of the validation rows, by fairseq's own loop."""
        metrics.reset()  # fairseq keeps its meters in the process, and those of another criterion do not fit
        found = {}

        def keep(_: Any, stats: Any, __: Any) -> None:
            found.update({name: float(stats[name]) for name in ("loss", "accuracy")})

        self.task.post_validate = keep
        validate(self.cfg, self.trainer, self.task, self.batches, ["valid"])
        return found

    def validation(self) -> Iterator[Any]:
        """The batches of a validation, as fairseq's loop gets them."""
        self.trainer.begin_valid_epoch(1)
        batches = self.trainer.get_valid_iterator("valid")
        return batches.next_epoch_itr(shuffle=False, set_dataset_epoch=False)

    def train_epoch(self, steps: int | None = None) -> None:
        """Train an epoch, or its first steps."""
        metrics.reset()
        self.trainer.begin_epoch(self.batches.next_epoch_idx)
        for batch in itertools.islice(self.batches.next_epoch_itr(shuffle=True), steps):
            self.trainer.train_step([batch])

    def padding(self) -> float:
        """The share of padding among the tokens of an epoch."""
        pad, batches = self.task.source_dictionary.pad(), list(self.batches.next_epoch_itr(shuffle=True))
        tokens = [batch["net_input"]["src_tokens"] for batch in batches]
        return sum(int(part.eq(pad).sum()) for part in tokens) / sum(part.numel() for part in tokens)


def preprocess_rows(task_name: str, data_dir: Path, folder: Path, rows: int | None, dev_rows: int | None) -> Path:
    """Write the first rows of a task's files, repeated where there are fewer, as binary data; returns their folder."""
    task = get_task(task_name)
    source = find_data(task, data_dir, "--data-dir", task.splits[:2])
    for split, count in zip(task.splits[:2], (rows, dev_rows), strict=True):
        lines = (source / split.file).read_text(encoding="utf-8").removesuffix("\n").split("\n")
        first = [] if split.header else [lines.pop(0)]
        count = count or len(lines)
        repeated = (lines * -(-count // len(lines)))[:count]
        path = folder / "tsv" / task.name / split.file
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("".join(line + "\n" for line in first + repeated), encoding="utf-8", newline="")
    words = ["--task", task.name, "--data-dir", folder / "tsv", "--output-dir", folder / "bin"]
    words += ["--bpe", "wordpiece", "--vocab", find_minilm() / "vocab.txt"]
    with contextlib.redirect_stdout(io.StringIO()):
        preprocess.main([str(word) for word in words])
    return folder / "bin"


def train_words(
    data: Path, task: str, criterion: str, layers: int, width: int, batch_size: int, cpu: bool, *words: str
) -> list[str]:
    """Arguments of ``fairseq-train`` for a RoBERTa from scratch."""
    ours = ["--head-fusion", "cls"] if task == OURS else ["--use-old-adam"]  # the plug-in's is not a peer's
    return [
        *(str(data), "--task", task, "--criterion", criterion, "--num-classes", "2", *ours),
        *("--arch", "roberta", "--encoder-layers", str(layers), "--encoder-embed-dim", str(width)),
        *("--encoder-ffn-embed-dim", str(4 * width), "--encoder-attention-heads", str(max(1, width // 64))),
        *("--max-positions", "128", "--init-token", "0", "--separator-token", "2"),
        *("--batch-size", str(batch_size), "--required-batch-size-multiple", "1", "--num-workers", "0"),
        *("--optimizer", "adam", "--adam-betas", "(0.9, 0.98)", "--lr", "1e-4", "--clip-norm", "1"),
        *("--distributed-world-size", "1", "--no-epoch-checkpoints", "--no-progress-bar", "--log-format", "none"),
        *(["--cpu"] if cpu else []),
        *words,
    ]


def open_run(words: Sequence[str]) -> FairseqRun:
    """Set up a training as ``fairseq-train`` does."""
    parser = options.get_training_parser()
    cfg = convert_namespace_to_omegaconf(options.parse_args_and_arch(parser, list(words)))
    utils.set_torch_seed(cfg.common.seed)
    task = tasks.setup_task(cfg.task)
    model, criterion = task.build_model(cfg.model), task.build_criterion(cfg.criterion)
    task.load_dataset("valid")
    trainer = Trainer(cfg, task, model, criterion)
    batches = trainer.get_train_iterator(epoch=1, load_dataset=True)
    return FairseqRun(cfg, trainer, task, batches)


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """Keep the messages of fairseq and transformers from the output."""
    disabled = logging.root.manager.disable
    logging.disable(logging.WARNING)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(disabled)
