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
and, with ``--do_predict``, GLUE's submission files. ``--resume_from_checkpoint last`` resumes a run that was
interrupted.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from transformers import PreTrainedTokenizerBase, TrainingArguments, set_seed
from transformers.utils import logging as hf_logging

from sot_base.atomic import remove_unfinished
from sot_base.class_weights import class_weights
from sot_base.errors import UsageError, run_main
from sot_hf.arguments import Options, parse_arguments
from sot_hf.batching import PaddingCollator
from sot_hf.callbacks import EarlyStopping, SaveOnTermination
from sot_hf.checkpoints import (
    check_same_model,
    check_whole,
    clear_output,
    find_checkpoints,
    find_models,
    newest_whole,
)
from sot_hf.configuration import SoTConfig
from sot_hf.data import TextDataset, read_split, read_task, row_indices, task_with_labels
from sot_hf.evaluation import evaluate, evaluate_checkpoints, metrics_function, predict, run_name
from sot_hf.load_config import load_config, saved_labels
from sot_hf.load_model import keeps_head, load_model
from sot_hf.load_tokenizer import load_tokenizer, usable_length
from sot_hf.modeling import SoTForSequenceClassification
from sot_hf.trainer import HeadTrainer
from sot_text.glue import GLUE_TASKS, GlueTask, SplitFile
from sot_text.hyperparameters import get_hyperparameters
from sot_text.metrics import check_metrics
from sot_text.splits import find_data

__all__ = ["main", "run"]

logger = logging.getLogger(__name__)


def main(arguments: Sequence[str] | None = None) -> None:
    """Run a command line."""
    options = parse_arguments(sys.argv[1:] if arguments is None else arguments)
    level = options.training.get_process_log_level()
    logging.basicConfig(level=level, format="%(levelname)s: %(message)s")
    logging.getLogger("httpx").setLevel(logging.WARNING)
    hf_logging.set_verbosity(max(level, hf_logging.WARNING))
    if options.training.disable_tqdm:
        hf_logging.disable_progress_bar()
    run(options)


def run(options: Options) -> dict[str, float]:
    """Carry out the options.

    Args:
        options: As :func:`sot_hf.arguments.parse_arguments` gives them.

    Returns:
        The metrics of the evaluation, fractions, by names like ``eval_accuracy``; empty without ``--do_eval``.

    Raises:
        UsageError: for mistakes in options, data or model files; before the training wherever possible.
    """
    with SaveOnTermination() as termination:
        return _run(options, termination)


def _run(options: Options, termination: SaveOnTermination) -> dict[str, float]:
    glue, training = options.glue, options.training
    task = read_task(
        glue.task_name, glue.text_columns, glue.label_column, glue.labels, glue.regression, glue.multi_label
    )
    folder = find_data(task, Path(glue.data_dir), "--data_dir")
    resume = _prepare_output(options)
    _choose_metric(training, task)
    set_seed(training.seed)
    config = load_config(glue.model_name_or_path, glue.model_type, glue.config_name, glue.cache_dir)
    task = task_with_labels(task, folder, saved_labels(config))
    model, task = load_model(
        *(glue.model_name_or_path, config, task, options.head, _head_recipe(task), training.do_train),
        strict_head=glue.strict_head,
        freeze_backbone=glue.freeze_backbone,
        train_layers=glue.train_layers,
        layers=glue.layers,
        layer_pair=glue.layer_pair,
        cache_dir=glue.cache_dir,
    )
    if training.do_train and training.process_index == 0 and keeps_head(config, task, options.head):
        print(f"the training starts from the saved head ({_describe_head(config)}): {glue.model_name_or_path}")  # noqa: T201
    tokenizer = load_tokenizer(
        *(glue.model_name_or_path, model, glue.tokenizer_name),
        *(glue.do_lower_case, glue.cache_dir, glue.force_lower_case),
    )
    length = usable_length(model, tokenizer, glue.max_seq_length, pairs=task.num_inputs == 2)
    _check_fit(options, model, task)

    def read(split: SplitFile, rows: int | None = None) -> TextDataset:
        return read_split(task, split, folder, tokenizer, length, rows)

    train = read(task.splits[0], glue.max_train_samples) if training.do_train else None
    valid: dict[str, TextDataset] = {}
    if training.do_eval:
        valid = {s.name: read(s, glue.max_eval_samples) for s in task.splits if s.name.startswith("valid")}
    test = _read_test(task, folder, read) if training.do_predict else {}
    if train is not None and glue.class_weights is not None:
        model.class_weights = _class_weights(glue.class_weights, train, task)
    trainer = _build_trainer(options, model, task, tokenizer, length, train, valid)
    if training.do_train:
        trainer.add_callback(termination)
        _train(trainer, resume)
        termination.finish()
    results = evaluate(trainer, valid, trainer.last_metrics())
    if results:
        trainer.save_metrics("eval", results)
        if trainer.is_world_process_zero():
            print(f"{task.name}: {task.main_metric} {results[f'eval_{task.main_metric}']:.4f}")  # noqa: T201
    for path in predict(trainer, task, test):
        print(f"wrote {path}")  # noqa: T201
    if glue.eval_all_checkpoints and valid:
        evaluate_checkpoints(trainer, valid)
    return results


def _prepare_output(options: Options) -> str | None:
    """Check the output folder and remove what a killed run left; returns the checkpoint to resume from."""
    training, output = options.training, Path(options.training.output_dir)
    if output.exists() and not output.is_dir():
        raise UsageError(f"a file where the output folder should be: {output.absolute()}; choose another --output_dir")
    if training.process_index == 0:
        remove_unfinished(output)
    wanted = training.resume_from_checkpoint
    if wanted is not None and wanted.lower() in ("last", "true"):
        last = newest_whole(output)
        if last is not None:
            return str(last)
        if not output.exists() or find_models(output):
            raise UsageError(f"no checkpoint to resume from: {output.absolute()}; leave out --resume_from_checkpoint")
        logger.warning("%s has no checkpoint yet: training starts from the first step", output)
        training.resume_from_checkpoint = None
        return None
    if wanted is not None:
        check_whole(Path(wanted))
        return str(wanted)
    found = find_checkpoints(output)
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


def _describe_head(config: SoTConfig) -> str:
    fusion = config.head["fusion"]
    return f"fusion {fusion}" if fusion == "cls" else f"pooling {config.head['pooling']}, fusion {fusion}"


def _choose_metric(training: TrainingArguments, task: GlueTask) -> None:
    """Select the best checkpoint by the task's main metric, unless the user names another one."""
    chosen = training.metric_for_best_model
    if chosen in (None, "loss") and training.greater_is_better in (None, False):
        training.metric_for_best_model, training.greater_is_better = task.main_metric, True
    elif chosen.removeprefix("eval_") != "loss":
        name = chosen.removeprefix("eval_")
        check_metrics([name])
        if name not in task.metrics:
            raise UsageError(f"{task.name} does not report {name}: --metric_for_best_model; give {task.main_metric}")


def _check_fit(options: Options, model: SoTForSequenceClassification, task: GlueTask) -> None:
    """Refuse options that do not apply to the model or the task."""
    glue, training = options.glue, options.training
    if training.gradient_checkpointing and not model.backbone.supports_gradient_checkpointing:
        kind = model.backbone.config.model_type
        raise UsageError(f"{kind} has no gradient checkpointing: --gradient_checkpointing; leave it out")
    if training.label_smoothing_factor and (task.regression or task.multi_label):
        what = "a regression has no classes" if task.regression else "a row with several labels has no class"
        raise UsageError(f"{what} to smooth: --label_smoothing_factor; leave it out")
    if glue.class_weights is not None and task.regression:
        raise UsageError(f"a regression has no classes: --class-weights {glue.class_weights}; leave it out")


def _class_weights(text: str, train: TextDataset, task: GlueTask) -> torch.Tensor:
    targets = train.targets
    counts = targets.sum(axis=0) if task.multi_label else np.bincount(targets, minlength=len(task.labels))
    weights = class_weights(text, task.labels, counts.tolist(), len(targets), task.multi_label)
    logger.info("class weights: %s", ", ".join(f"{n} {w:.3g}" for n, w in zip(task.labels, weights, strict=True)))
    return torch.tensor(weights, dtype=torch.float32)


def _build_trainer(
    options: Options,
    model: SoTForSequenceClassification,
    task: GlueTask,
    tokenizer: PreTrainedTokenizerBase,
    length: int,
    train: TextDataset | None,
    valid: dict[str, TextDataset],
) -> HeadTrainer:
    glue, training = options.glue, options.training
    callbacks = []
    if glue.early_stopping_patience is not None:
        metric = f"eval_{(training.metric_for_best_model or '').removeprefix('eval_')}"
        better = bool(training.greater_is_better)
        callbacks.append(EarlyStopping(glue.early_stopping_patience, glue.early_stopping_threshold, metric, better))
    try:
        return HeadTrainer(
            head_lr_scale=glue.head_lr_scale,
            max_tokens=glue.max_tokens,
            rows_limited=options.rows_limited,
            max_length=length,
            model=model,
            args=training,
            train_dataset=train,
            eval_dataset=valid.get("valid"),
            data_collator=PaddingCollator(tokenizer, length, glue.pad_to_max_length),
            processing_class=tokenizer,
            compute_metrics=metrics_function(task, run_name(model, training.seed)),
            callbacks=callbacks,
        )
    except (ValueError, ImportError) as error:  # such as --report_to with a name it does not know
        raise UsageError(f"the options do not fit together ({error}): the command line; change one") from error


def _train(trainer: HeadTrainer, resume: str | None) -> None:
    if resume:
        check_same_model(Path(resume), trainer.model.config)
    if trainer.args.process_index == 0:
        clear_output(trainer.output, resume is not None)
    result = trainer.train(resume_from_checkpoint=resume)
    trainer.rotate_checkpoints()
    trainer.save_model()
    trainer.save_metrics("train", {**result.metrics, "train_samples": len(trainer.train_dataset)})
    trainer.save_state()


def _read_test(
    task: GlueTask, folder: Path, read: Callable[[SplitFile], TextDataset]
) -> dict[str, tuple[TextDataset, list[str]]]:
    """The test files that are there, with the indices of their rows."""
    splits = [split for split in task.splits if split.is_test and (folder / split.file).is_file()]
    if not splits:
        raise UsageError(f"no test file to predict: {folder.absolute()}; leave out --do_predict")
    return {split.file: (read(split), row_indices(task, split, folder)) for split in splits}


if __name__ == "__main__":
    run_main(main)
