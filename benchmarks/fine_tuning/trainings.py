"""Fine-tune an encoder as an arm says, with the model, collator and trainer of `sot_hf`, and test it once."""

from __future__ import annotations

import argparse
import math
import tempfile
import time
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from sklearn.metrics import roc_auc_score
from transformers import TrainerCallback, set_seed

from benchmarks.fine_tuning.arms import ARMS, ENCODER_SCALE, MIDDLE, Arm
from benchmarks.fine_tuning.encoder_states import encode, read_step, train_probes
from benchmarks.fine_tuning.results_file import Results, Run, Step, read_results
from benchmarks.heads.datasets import draw_rows
from sot_base.errors import UsageError
from sot_hf.arguments import parse_arguments
from sot_hf.batching import PaddingCollator
from sot_hf.data import TextDataset, read_split, read_task
from sot_hf.load_config import load_config
from sot_hf.load_model import load_model
from sot_hf.modeling import SoTForSequenceClassification
from sot_hf.token_states import TextEncoder
from sot_hf.trainer import HeadTrainer
from sot_probe.fingerprint import array_digest, weights_digest
from sot_probe.row_cache import RowCache
from sot_probe.trainee import TrainingSettings
from sot_text.metrics import compute_metrics
from sot_text.splits import find_data

__all__ = ["FineTuning", "measure"]

TASK = "CoLA"
PROBED = TrainingSettings(lr=1e-3, epochs=8)  # of a head that is trained first
DIGITS = 5  # of a score in the file
# as docs/fine_tuning.md has it; nothing is saved and nothing evaluated before the end
COMMON = "--do_train --weight_decay 0.1 --warmup_steps 0.06 --lr_scheduler_type linear --max_grad_norm 1 --use_cpu"
QUIET = (
    "--save_strategy no --eval_strategy no --logging_strategy no --report_to none --disable_tqdm true "
    "--per_device_eval_batch_size 64"
)


def measure(args: argparse.Namespace) -> Results:
    """Complete the file: all arms of a seed, then those of the next one.

    Raises:
        UsageError: for wrong data, or if the file is of other settings.
    """
    bench = FineTuning(args)
    results = Results(bench.task.main_metric, bench.protocol(), bench.test.targets.tolist(), {})
    if args.output.exists():
        found = read_results(args.output)
        for key, value in results.protocol.items():
            if found.protocol.get(key) != value:
                raise UsageError(
                    f"{key} was {found.protocol.get(key)}, now {value}: {args.output}; give the same options, or "
                    "another --output"
                )
        results = found
    for seed in args.seeds:
        for name in args.arms:
            is_followed = name in args.follow
            if results.has(name, seed, is_followed):
                continue
            run = bench.train(ARMS[name], seed, is_followed)
            results.arms.setdefault(name, {})[str(seed)] = run
            results.write(args.output)
            print(f"{name}, seed {seed}: {run.value:.2f}, {run.seconds:.0f} s", flush=True)  # noqa: T201
    return results


class FineTuning:
    """The data and the encoder of the measurement.

    Args:
        args: The command line.

    Raises:
        UsageError: if data or encoder cannot be read.
    """

    def __init__(self, args: argparse.Namespace) -> None:
        self.args, self.bf16 = args, args.precision == "bf16"
        self.task = read_task(TASK)
        folder = find_data(self.task, Path(args.data_dir), "--data-dir")
        self.encoder = TextEncoder(args.encoder)  # never tuned
        self.path, self.tokenizer = self.encoder.model.name_or_path, self.encoder.tokenizer
        train, test = (split for split in self.task.splits if not split.is_test)
        self.train_rows, self.test = (
            read_split(self.task, split, folder, self.tokenizer, self.encoder.max_length) for split in (train, test)
        )
        if args.held_out:
            spare = np.setdiff1d(np.arange(len(self.train_rows)), self.rows(args.labels, args.seeds[0]))
            rows = np.random.default_rng(0).permutation(spare)[: len(self.test)]
            if not len(rows):
                raise UsageError(f"no row is left of {len(self.train_rows)}: --held-out; give fewer --labels")
            self.test = _subset(self.train_rows, np.sort(rows))
        self.cache, self.before = RowCache(), {}

    def protocol(self) -> dict[str, Any]:
        """What all runs have in common."""
        args = self.args
        texts = [np.concatenate([row["input_ids"] for row in rows.encodings]) for rows in (self.train_rows, self.test)]
        own = {"data": array_digest(texts), "encoder": weights_digest(self.encoder.model.backbone.state_dict())}
        names = ("labels", "epochs", "batch_size", "learning_rate", "precision", "held_out")
        return {**own, **{name: getattr(args, name) for name in names}}

    def rows(self, labels: int, seed: int) -> np.ndarray:
        """The training rows of a seed, sorted; all of them if there are no more."""
        targets = self.train_rows.targets
        return draw_rows(targets, labels, seed) if labels < len(targets) else np.arange(len(targets))

    def words(self, arm: Arm, seed: int) -> list[str]:
        """The arm as options of `sot_hf.run_glue`; with fewer labels there are more epochs, and as many updates."""
        args = self.args
        labels = min(args.labels, len(self.train_rows))
        epochs = math.ceil(args.epochs * labels / min(arm.labels or labels, labels))
        rate = ["--learning_rate", str(args.learning_rate)]
        if arm.is_probed:
            scaled = args.learning_rate * ENCODER_SCALE
            rate = ["--learning_rate", f"{scaled:g}", "--head_lr_scale", f"{1 / ENCODER_SCALE:.6g}"]
        numbers = {"--per_device_train_batch_size": args.batch_size, "--num_train_epochs": epochs, "--seed": seed}
        given = [str(word) for pair in numbers.items() for word in pair]
        middle = str(self.encoder.num_layers // 2)
        own = [middle if word == MIDDLE else word for word in arm.words]
        return [*own, *rate, *given, *COMMON.split(), *(["--bf16"] if self.bf16 else [])]

    def train(self, arm: Arm, seed: int, is_followed: bool = False) -> Run:
        """Train an arm with a seed and test it."""
        begin = time.perf_counter()
        words = self.words(arm, seed)
        train = _subset(self.train_rows, self.rows(arm.labels or self.args.labels, seed))
        with tempfile.TemporaryDirectory() as folder:
            files = ["--model_name_or_path", self.path, "--task_name", TASK, "--data_dir", str(self.args.data_dir)]
            options = parse_arguments([*files, "--output_dir", folder, *words, *QUIET.split()])
            set_seed(seed)
            model, _ = load_model(
                *(self.path, load_config(self.path), self.task, options.head, {}, True),
                train_layers=options.glue.train_layers,
                layers=options.glue.layers,
                layer_pair=options.glue.layer_pair,
            )
            if arm.is_probed:
                self._probe_first(model, train, seed)
            follower = _Follower(self, train, seed, model) if is_followed else None
            length = self.encoder.max_length
            trainer = HeadTrainer(
                head_lr_scale=options.glue.head_lr_scale,
                rows_limited=options.rows_limited,
                max_length=length,
                model=model,
                args=options.training,
                train_dataset=train,
                data_collator=PaddingCollator(self.tokenizer, length),
                processing_class=self.tokenizer,
                callbacks=[follower] if follower else [],
            )
            trainer.train()
            seconds = time.perf_counter() - begin
            logits = trainer.predict(self.test).predictions
        scores = [round(float(score), DIGITS) for score in logits[:, 1] - logits[:, 0]]
        return Run(
            words=" ".join(words),
            parameters=sum(own.numel() for own in model.parameters() if own.requires_grad),
            updates=trainer.state.global_step,
            seconds=round(seconds, 1),
            value=self.value(logits.argmax(axis=-1)),
            auc=100 * float(roc_auc_score(self.test.targets, scores)),
            scores=scores,
            steps=follower.steps if follower else [],
        )

    def value(self, predictions: np.ndarray) -> float:
        """The metric (percent) of predicted classes of the test rows."""
        task = self.task
        found = compute_metrics(task.metrics, predictions, self.test.targets, task.num_classes, task.labels, TASK)
        return 100 * found[task.main_metric]

    def step(self, train: TextDataset, seed: int, epoch: int, model: SoTForSequenceClassification) -> Step:
        """What the states of a model hold after an epoch; before the first one they are those of the encoder."""
        rows = (train, self.test)
        if epoch:
            return read_step(self._moving, model.backbone, rows, self.value, seed, epoch, self.bf16)
        key = (seed, len(train))
        if key not in self.before:
            self.before[key] = read_step(self.encoder, None, rows, self.value, seed, 0, self.bf16, self.cache)
        return self.before[key]

    @cached_property
    def _moving(self) -> TextEncoder:
        """An encoder whose weights are replaced by tuned ones."""
        return TextEncoder(self.args.encoder)

    def _probe_first(self, model: SoTForSequenceClassification, train: TextDataset, seed: int) -> None:
        states = encode(self.encoder, train, self.bf16, self.cache)
        (head,) = train_probes(self.encoder, {"head": model.config.head}, states, seed, PROBED).values()
        model.classifier.load_state_dict(head.head.state_dict())


class _Follower(TrainerCallback):
    """Reads the encoder's states before the training and after each epoch."""

    def __init__(self, bench: FineTuning, train: TextDataset, seed: int, model: SoTForSequenceClassification) -> None:
        self.bench, self.train, self.seed = bench, train, seed
        self.steps = [bench.step(train, seed, 0, model)]

    def on_epoch_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Called by the trainer."""
        self.steps.append(self.bench.step(self.train, self.seed, round(state.epoch), kwargs["model"]))


def _subset(rows: TextDataset, chosen: np.ndarray) -> TextDataset:
    return TextDataset([rows.encodings[row] for row in chosen.tolist()], rows.targets[chosen])
