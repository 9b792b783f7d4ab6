r"""Fine-tune, evaluate and predict on GLUE or own TSV files with a second-order head on a Hugging Face model.

    python -m sot_hf.run_glue --model_type bert --model_name_or_path bert-base-cased --task_name RTE \
        --do_train --do_eval --data_dir glue_data/RTE --max_seq_length 128 --per_gpu_train_batch_size 32 \
        --learning_rate 2e-5 --num_train_epochs 10 --output_dir OUTPUT/ --eval_all_checkpoints
    python -m sot_hf.run_glue --model_name_or_path OUTPUT/ --task_name RTE --do_predict --data_dir glue_data/RTE \
        --output_dir PREDICTIONS/

Options are those of transformers' `TrainingArguments`, the head's (``--head-fusion cls`` is the baseline) and the
task's. A GLUE task without head options gets the head of the BERT rows of :mod:`sot_text.hyperparameters`.

The output folder holds the model (the best epoch's, by the task's main metric on the first dev file) with its
tokenizer, ``checkpoint-*``, ``train_results.json``, ``eval_results.json`` (MNLI's second dev file under ``eval_mm_``)
and, with ``--do_predict``, GLUE's submission files. ``--resume_from_checkpoint last`` goes on with a run that was cut
off.
"""

from __future__ import annotations

import json
import logging
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from transformers import (
    DataCollatorWithPadding,
    EvalPrediction,
    PreTrainedTokenizerBase,
    Trainer,
    TrainingArguments,
    set_seed,
)
from transformers.utils import logging as hf_logging

from sot_base.atomic import atomic_file
from sot_base.errors import UsageError, run_main
from sot_hf.arguments import Options, parse_arguments
from sot_hf.checkpoints import STATE, check_same_model, check_whole, clear_output, find_checkpoints, find_models
from sot_hf.data import TextDataset, find_data, read_split, read_task, row_indices, task_with_labels
from sot_hf.load_config import load_config, saved_labels
from sot_hf.load_model import load_model
from sot_hf.load_tokenizer import load_tokenizer, usable_length
from sot_hf.modeling import SoTForSequenceClassification
from sot_hf.trainer import HeadTrainer
from sot_text.glue import GLUE_TASKS, GlueTask, SplitFile
from sot_text.hyperparameters import get_hyperparameters
from sot_text.metrics import check_metrics, compute_metrics
from sot_text.submission import submission_name, write_submission

__all__ = ["main", "run"]

logger = logging.getLogger(__name__)

EVAL_PREFIX = {"valid": "eval", "valid1": "eval_mm"}


def main(arguments: Sequence[str] | None = None) -> None:
    """Run a command line."""
    options = parse_arguments(sys.argv[1:] if arguments is None else arguments)
    level = options.training.get_process_log_level()
    logging.basicConfig(level=level, format="%(levelname)s: %(message)s")
    logging.getLogger("httpx").setLevel(logging.WARNING)
    hf_logging.set_verbosity(max(level, hf_logging.WARNING))
    run(options)


def run(options: Options) -> dict[str, float]:
    """Do what the options say.

    Args:
        options: As :func:`sot_hf.arguments.parse_arguments` gives them.

    Returns:
        The metrics of the evaluation, fractions, by names like ``eval_accuracy``; empty without ``--do_eval``.

    Raises:
        UsageError: for mistakes in options, data or model files; before the training wherever possible.
    """
    glue, training = options.glue, options.training
    task = read_task(glue.task_name, glue.text_columns, glue.label_column, glue.labels, glue.regression)
    folder = find_data(task, glue.data_dir)
    resume = _prepare_output(options)
    _choose_metric(training, task)
    set_seed(training.seed)
    config = load_config(glue.model_name_or_path, glue.model_type, glue.config_name, glue.cache_dir)
    task = task_with_labels(task, folder, saved_labels(config))
    model, task = load_model(
        *(glue.model_name_or_path, config, task, options.head, _head_recipe(task), training.do_train),
        strict_head=glue.strict_head,
        freeze_backbone=glue.freeze_backbone,
        cache_dir=glue.cache_dir,
    )
    tokenizer = load_tokenizer(glue.model_name_or_path, model, glue.tokenizer_name, glue.do_lower_case, glue.cache_dir)
    length = usable_length(model, tokenizer, glue.max_seq_length, pairs=task.num_inputs == 2)
    _check_fit(training, model, task)

    def read(split: SplitFile, rows: int | None = None) -> TextDataset:
        return read_split(task, split, folder, tokenizer, length, rows)

    train = read(task.splits[0], glue.max_train_samples) if training.do_train else None
    valid: dict[str, TextDataset] = {}
    if training.do_eval:
        valid = {s.name: read(s, glue.max_eval_samples) for s in task.splits if s.name.startswith("valid")}
    test = _read_test(task, folder, read) if training.do_predict else {}
    trainer = _build_trainer(options, model, task, tokenizer, length, train, valid)
    if training.do_train:
        if resume:
            check_same_model(Path(resume), model.config)
        if training.process_index == 0:
            clear_output(Path(training.output_dir), resume is not None)
        _train(trainer, resume)
    results = _evaluate(trainer, valid)
    if results:
        trainer.save_metrics("eval", results)
        if trainer.is_world_process_zero():
            main_result = results[f"eval_{task.main_metric}"]
            print(f"{task.name}: {task.main_metric} {main_result:.4f}")  # noqa: T201
    _predict(trainer, task, test)
    if glue.eval_all_checkpoints and valid:
        _evaluate_checkpoints(trainer, valid)
    return results


def _prepare_output(options: Options) -> str | None:
    """Check the output folder; gives the checkpoint to go on from."""
    training, output = options.training, Path(options.training.output_dir)
    if output.exists() and not output.is_dir():
        raise UsageError(f"a file where the output folder should be: {output.absolute()}; choose another --output_dir")
    found = find_checkpoints(output)
    wanted = training.resume_from_checkpoint
    if wanted is not None and wanted.lower() in ("last", "true"):
        if not found:
            raise UsageError(f"no checkpoint to resume from: {output.absolute()}; leave out --resume_from_checkpoint")
        wanted = found[-1]
    if wanted is not None:
        check_whole(Path(wanted))
        return str(wanted)
    earlier = found or find_models(output)
    if training.do_train and earlier and not options.glue.overwrite_output_dir:
        go_on = "--resume_from_checkpoint last, " if found else ""
        raise UsageError(
            f"the output folder holds {earlier[-1].name} of an earlier run: {output.absolute()}; give "
            f"{go_on}--overwrite_output_dir or another --output_dir"
        )
    return None


def _head_recipe(task: GlueTask) -> dict[str, Any]:
    """Fields of `HeadConfig` for a GLUE task, the same for every backbone; own data has the head's defaults."""
    if task.name not in GLUE_TASKS:
        return {}
    values = get_hyperparameters(task.name, "bert")
    return {
        "num_heads": values.mgcrp_heads,
        "q_dim": values.mgcrp_q,
        "k_dim": values.mgcrp_k,
        "drop_rate": values.head_dropout,
    }


def _choose_metric(training: TrainingArguments, task: GlueTask) -> None:
    """Let the task's main metric pick the best checkpoint, unless the user names another one."""
    chosen = training.metric_for_best_model
    if chosen in (None, "loss") and training.greater_is_better in (None, False):
        training.metric_for_best_model, training.greater_is_better = task.main_metric, True
    elif chosen.removeprefix("eval_") != "loss":
        name = chosen.removeprefix("eval_")
        check_metrics([name])
        if name not in task.metrics:
            raise UsageError(f"{task.name} does not report {name}: --metric_for_best_model; give {task.main_metric}")


def _metrics_function(task: GlueTask, model_name: str) -> Callable[[EvalPrediction], dict[str, float]]:
    def metrics(outputs: EvalPrediction) -> dict[str, float]:
        targets = np.asarray(outputs.label_ids).reshape(-1)
        predictions = _predictions(outputs.predictions, task)
        return compute_metrics(task.metrics, predictions, targets, task.num_classes or None, task.labels, model_name)

    return metrics


def _model_name(model: SoTForSequenceClassification, seed: int) -> str:
    """Head and seed, for messages about one of many runs."""
    head = model.config.head
    return f"head {'cls' if head['fusion'] == 'cls' else head['pooling']}, seed {seed}"


def _predictions(logits: np.ndarray, task: GlueTask) -> np.ndarray:
    if not np.isfinite(logits).all():
        raise UsageError("the model's outputs are not finite: it has diverged; lower --learning_rate")
    return logits[:, 0] if task.regression else logits.argmax(axis=-1)


def _check_fit(training: TrainingArguments, model: SoTForSequenceClassification, task: GlueTask) -> None:
    if training.gradient_checkpointing and not model.backbone.supports_gradient_checkpointing:
        kind = model.backbone.config.model_type
        raise UsageError(f"{kind} has no gradient checkpointing: --gradient_checkpointing; leave it out")
    if training.label_smoothing_factor and task.regression:
        raise UsageError("a regression has no classes to smooth: --label_smoothing_factor; leave it out")


def _build_trainer(
    options: Options,
    model: SoTForSequenceClassification,
    task: GlueTask,
    tokenizer: PreTrainedTokenizerBase,
    length: int,
    train: TextDataset | None,
    valid: dict[str, TextDataset],
) -> HeadTrainer:
    padding = {"padding": "max_length", "max_length": length} if options.glue.pad_to_max_length else {}
    try:
        return HeadTrainer(
            head_lr_scale=options.glue.head_lr_scale,
            model=model,
            args=options.training,
            train_dataset=train,
            eval_dataset=valid.get("valid"),
            data_collator=DataCollatorWithPadding(tokenizer, **padding),
            processing_class=tokenizer,
            compute_metrics=_metrics_function(task, _model_name(model, options.training.seed)),
        )
    except (ValueError, ImportError) as error:  # such as --report_to with a name it does not know
        raise UsageError(f"the options do not fit together ({error}): the command line; change one") from error


def _train(trainer: Trainer, resume: str | None) -> None:
    result = trainer.train(resume_from_checkpoint=resume)
    trainer.save_model()
    trainer.save_metrics("train", {**result.metrics, "train_samples": len(trainer.train_dataset)})
    trainer.save_state()


def _evaluate(trainer: Trainer, valid: dict[str, TextDataset]) -> dict[str, float]:
    results: dict[str, float] = {}
    for name, dataset in valid.items():
        results |= trainer.evaluate(dataset, metric_key_prefix=EVAL_PREFIX[name])
    return results


def _evaluate_checkpoints(trainer: Trainer, valid: dict[str, TextDataset]) -> None:
    """Evaluate every checkpoint of the output folder and write ``eval_results_all.json``."""
    output = Path(trainer.args.output_dir)
    table = {}
    for checkpoint in find_checkpoints(output):
        check_same_model(checkpoint, trainer.model.config)
        saved = SoTForSequenceClassification.from_pretrained(checkpoint, dtype=trainer.model.dtype)
        trainer.model.load_state_dict(saved.state_dict())
        epoch = json.loads((checkpoint / STATE).read_text(encoding="utf-8"))["epoch"]
        table[checkpoint.name] = {**_evaluate(trainer, valid), "epoch": epoch}
        logger.info("%s: %s", checkpoint.name, table[checkpoint.name])
    if trainer.is_world_process_zero():
        with atomic_file(output / "eval_results_all.json") as temporary:
            temporary.write_text(json.dumps(table, indent=2) + "\n", encoding="utf-8")


def _read_test(
    task: GlueTask, folder: Path, read: Callable[[SplitFile], TextDataset]
) -> dict[str, tuple[TextDataset, list[str]]]:
    """The test files that are there, with the indices of their rows."""
    splits = [split for split in task.splits if split.is_test and (folder / split.file).is_file()]
    if not splits:
        raise UsageError(f"no test file to predict: {folder.absolute()}; leave out --do_predict")
    return {split.file: (read(split), row_indices(task, split, folder)) for split in splits}


def _predict(trainer: Trainer, task: GlueTask, test: dict[str, tuple[TextDataset, list[str]]]) -> None:
    for file, (dataset, indices) in test.items():
        predictions = _predictions(trainer.predict(dataset).predictions, task).tolist()
        if trainer.is_world_process_zero():
            path = Path(trainer.args.output_dir) / submission_name(task, file)
            write_submission(
                path, task, indices, predictions if task.regression else [task.labels[index] for index in predictions]
            )
            print(f"wrote {path}")  # noqa: T201


if __name__ == "__main__":
    run_main(main)
