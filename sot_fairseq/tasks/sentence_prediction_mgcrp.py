"""The task ``sentence_prediction_mgcrp``: fairseq's sentence prediction with second-order classification heads."""

from __future__ import annotations

import contextlib
import functools
import itertools
import logging
import os
from pathlib import Path
from typing import Any

import numpy as np
from fairseq.data import (
    Dictionary,
    IdDataset,
    NestedDictionaryDataset,
    NumelDataset,
    NumSamplesDataset,
    RightPadDataset,
    data_utils,
)
from fairseq.models import ARCH_CONFIG_REGISTRY, ARCH_MODEL_REGISTRY
from fairseq.models.roberta import RobertaModel
from fairseq.tasks import register_task
from fairseq.tasks.sentence_prediction import SentencePredictionTask
from omegaconf import OmegaConf, open_dict

from sot_base.class_weights import class_weights
from sot_base.errors import UsageError
from sot_base.names import name_key
from sot_core.options import HEAD_OPTIONS, head_settings
from sot_fairseq.data.dataset import BatchedDataset, SentenceDataset
from sot_fairseq.data.epoch_batches import EpochBatches
from sot_fairseq.data.indexed import check_indexed
from sot_fairseq.data.targets import label_names, read_classes, read_numbers, target_array
from sot_fairseq.fairseq_patches.train_loop import early_stopping_state, patch_train_loop, restore_early_stopping
from sot_fairseq.models.sot_roberta import SoTRobertaModel
from sot_fairseq.runs.checks import check_best_metric, check_run, metrics_of
from sot_fairseq.runs.learning_rates import scale_learning_rates, scaled_groups
from sot_fairseq.tasks.kept_head import KeptHead, take_head
from sot_fairseq.tasks.settings_from_data import record_settings_from_data, take_settings_from_data
from sot_fairseq.tasks.task_config import SentencePredictionMGCrPConfig
from sot_text.formats.dictionary import read_dictionary

__all__ = ["SentencePredictionMGCrPTask"]

logger = logging.getLogger(__name__)

SPECIAL_TOKENS = ("init_token", "separator_token")


@register_task("sentence_prediction_mgcrp", dataclass=SentencePredictionMGCrPConfig)
class SentencePredictionMGCrPTask(SentencePredictionTask):
    """Classify or score sentences and sentence pairs with any head of :mod:`sot_core`.

    Reads the folders of ``python -m sot_fairseq.preprocess``, which are those of fairseq's ``sentence_prediction``.
    ``--arch`` decides the encoder, this task the head.

    Args:
        cfg: The options.
        data_dictionary: Dictionary of the input.
        label_dictionary: Dictionary of the labels.

    Attributes:
        label_names: Names of the model's classes in its order; empty for regression.
        class_weights: Weights of the classes in the loss, in the same order; None for none.
        starts_training: Whether the task was set up for a training, not for a checkpoint.
        kept_head: The head of the checkpoint that the training starts from, with ``--keep-head``.
        skipped_steps: Steps without an update, for gradients that overflowed.
    """

    starts_training = False
    class_weights: list[float] | None = None
    kept_head: KeptHead | None = None
    skipped_steps = 0
    _class_weights_option: str | None = None
    _updates = 0
    _scales_learning_rates = False

    def __init__(self, cfg: Any, data_dictionary: Dictionary, label_dictionary: Dictionary) -> None:
        super().__init__(cfg, data_dictionary, label_dictionary)
        self.data_label_names = [] if cfg.regression_target else label_names(label_dictionary)
        self.label_names = list(self.data_label_names)
        self._translation = np.arange(len(self.data_label_names))

    @classmethod
    def setup_task(cls, cfg: Any, **kwargs: Any) -> SentencePredictionMGCrPTask:
        """Read the dictionaries and, at the start of a training, check the run as a whole.

        Raises:
            UsageError: for anything that would only show after the start, or not at all.
        """
        for name, default in (("shorten_method", "none"), ("add_prev_output_tokens", False), ("d2v2_multi", False)):
            if cfg[name] != default:
                raise UsageError(
                    f"--{name.replace('_', '-')} is not used by this task; leave it out "
                    "(sequences are cut to --max-positions, the longer sentence first)"
                )
        trained = kwargs.get("from_checkpoint", False)
        dictionaries = [_load_dictionary(cls, file) for file in take_settings_from_data(cfg, trained)]
        labels = None if cfg.regression_target else label_names(dictionaries[-1])
        if cfg.num_classes < 1:
            cfg.num_classes = 1 if labels is None else len(labels)
        if labels is not None and len(labels) != cfg.num_classes:
            raise UsageError(
                f"--num-classes {cfg.num_classes}, but {os.path.abspath(cfg.data)}/label/dict.txt has {len(labels)} "
                f"labels ({', '.join(labels)}); give --num-classes {len(labels)}"
            )
        kept = None
        if not trained:
            check_run(cfg)
            patch_train_loop()
            kept = take_head(cfg) if cfg.keep_head else None
        task = cls(cfg, dictionaries[0], dictionaries[-1])
        task.starts_training = not trained
        if kept is not None:
            task.kept_head = kept
            task.load_state_dict({"label_names": kept.labels})
        return task

    def load_dataset(self, split: str, combine: bool = False, **kwargs: Any) -> Any:
        """Load a split: sequences within ``--max-positions``, targets in the model's order of labels.

        Raises:
            UsageError: if the split is absent, its parts differ in length, or a row has an unknown label.
        """
        first = self._load("input0", split, self.source_dictionary, combine)
        if first is None:
            raise UsageError(
                f"no data for split {split!r}: {self._path('input0', split)}.idx; give --valid-subset or --data"
            )
        second = self._load("input1", split, self.source_dictionary, combine)
        tokens = SentenceDataset(
            first, second, self.cfg.init_token, self.cfg.separator_token, self.max_positions(), split
        )
        defn: dict[str, Any] = {
            "id": IdDataset(),
            "net_input": {
                "src_tokens": RightPadDataset(tokens, pad_idx=self.source_dictionary.pad()),
                "src_lengths": NumelDataset(tokens, reduce=False),
            },
            "nsentences": NumSamplesDataset(),
            "ntokens": NumelDataset(tokens, reduce=True),
        }
        target = self._targets(split, combine, len(tokens))
        if target is not None:
            defn["target"] = target
        rows = NestedDictionaryDataset(defn, sizes=[tokens.sizes])
        training = split.startswith("train")
        if training and self.starts_training:
            self._weigh_classes(target)
        dataset = BatchedDataset(rows, training, keep_order=self.cfg.no_shuffle, split=split)
        if self.starts_training:
            dataset.check_max_tokens(self.cfg.max_tokens if training else self.cfg.max_tokens_valid)
        logger.info(
            "split %r: %d rows, %.1f tokens each", split, len(tokens), tokens.sizes.mean() if len(tokens) else 0
        )
        self.datasets[split] = dataset
        return dataset

    def _path(self, part: str, split: str) -> str:
        return os.path.abspath(os.path.join(self.cfg.data, part, split))

    def _load(self, part: str, split: str, dictionary: Dictionary, combine: bool) -> Any:
        prefix = self._path(part, split)
        for number in itertools.count() if combine else (0,):  # with combine, train, train1, train2...
            path = f"{prefix}{number or ''}"
            if not os.path.exists(f"{path}.idx"):
                break
            check_indexed(path, len(dictionary))
        return data_utils.load_indexed_dataset(prefix, dictionary, combine=combine)

    def _targets(self, split: str, combine: bool, rows: int) -> Any:
        path = self._path("label", split)
        targets: Any = None
        if self.cfg.regression_target:
            path += ".label"
            if os.path.exists(path):
                targets = read_numbers(Path(path), self.cfg.num_classes)
        else:
            labels = self._load("label", split, self.label_dictionary, combine)
            if labels is not None:
                where = f"split {split!r} ({path})"
                targets = read_classes(labels, self.label_dictionary, self._translation, self.cfg.multi_label, where)
        if targets is not None and len(targets) != rows:
            raise UsageError(f"split {split!r} has {rows} rows but {len(targets)} labels: {path}; preprocess it again")
        if targets is None and self.starts_training:
            raise UsageError(f"split {split!r} has no labels: {path}; give splits with labels, --valid-subset valid")
        return targets

    def _weigh_classes(self, targets: Any) -> None:
        """Compute the weights of the classes from the training rows."""
        if self._class_weights_option is None:
            return
        array, multi_label = target_array(targets), self.cfg.multi_label
        counts = array.sum(axis=0) if multi_label else np.bincount(array, minlength=len(self.label_names))
        weights = class_weights(self._class_weights_option, self.label_names, counts, len(array), multi_label)
        self.class_weights = weights.tolist()
        named = ", ".join(f"{name} {weight:.4g}" for name, weight in zip(self.label_names, weights, strict=True))
        logger.info("class weights: %s", named)

    def has_sharded_data(self, split: str) -> bool:
        """No: the data are one folder, whose path may hold a colon."""
        return False

    def get_batch_iterator(self, dataset: Any, **kwargs: Any) -> Any:
        """As fairseq's own; one iterator, with its loading processes, serves all epochs of a training.

        fairseq makes a new one whenever the order of rows is drawn again, and the processes of the old ones stay until
        Python's garbage collection finds them.
        """
        iterator = super().get_batch_iterator(dataset, **{**kwargs, "update_epoch_batch_itr": False})
        if getattr(dataset, "draws_order", False):
            iterator.batch_sampler = EpochBatches(self, **kwargs)
            iterator.seed = iterator.batch_sampler.seed
        return iterator

    def get_checkpoint_dict(self) -> dict[str, Any]:
        """What a checkpoint keeps of the training loop, under this class's name."""
        return {type(self).__name__: {"early_stopping": early_stopping_state()}}

    def set_checkpoint_dict(self, state_dict: dict[str, Any]) -> None:
        """Restore what :meth:`get_checkpoint_dict` returned."""
        restore_early_stopping(state_dict.get("early_stopping", {}))

    def build_model(self, cfg: Any, from_checkpoint: bool = False) -> SoTRobertaModel:
        """Build the encoder that ``--arch`` names and its head.

        fairseq's own RoBERTa is built as this package's subclass of it, which passes the padding mask to the heads.

        Raises:
            UsageError: for an arch that is neither RoBERTa nor BERT, or a head that cannot be built.
        """
        arch = getattr(cfg, "_name", None) or getattr(cfg, "arch", None)
        model_class = ARCH_MODEL_REGISTRY.get(arch)
        if model_class is RobertaModel:
            model_class = SoTRobertaModel
        if model_class is None or not issubclass(model_class, SoTRobertaModel):
            known = [
                name for name, kind in ARCH_MODEL_REGISTRY.items() if issubclass(kind, (SoTRobertaModel, RobertaModel))
            ]
            raise UsageError(f"--arch {arch} has no token states for this task; give one of {', '.join(sorted(known))}")
        with open_dict(cfg) if OmegaConf.is_config(cfg) else contextlib.nullcontext():
            cfg.max_positions = self.cfg.max_positions
            ARCH_CONFIG_REGISTRY[arch](cfg)
        model = model_class.build_model(cfg, self)
        model.freeze_backbone = self.cfg.freeze_backbone or self.cfg.train_layers == 0
        model.train_layers = self.cfg.train_layers or None
        model.allow_partial = self.cfg.partial_backbone
        model.strict_head = self.cfg.strict_head or self.kept_head is not None
        if self.kept_head is not None:
            model.kept_head = self.kept_head.name
            where = os.path.abspath(self.cfg.finetune_from_model)
            logger.info("the training starts from the saved head (%s): %s", self.kept_head.kind, where)
        model.register_classification_head(
            self.cfg.classification_head_name,
            num_classes=self.cfg.num_classes,
            head_settings=head_settings({option.name: self.cfg[option.name] for option in HEAD_OPTIONS}),
        )
        model.prepare_for_classification()
        self._scales_learning_rates = scale_learning_rates(model, self.cfg.head_lr_scale, self.cfg.layer_decay)
        return model

    def build_criterion(self, cfg: Any, from_checkpoint: bool = False) -> Any:
        """Build the criterion and check that it computes what the run asks for.

        Raises:
            UsageError: if it does not compute the metric that picks the best checkpoint, or ``sum_loss`` meets
                fairseq's own criterion, which has one loss.
        """
        record_settings_from_data(self.cfg, cfg)
        self._class_weights_option = getattr(cfg, "class_weights", None)
        criterion = super().build_criterion(cfg, from_checkpoint)
        check_best_metric(self.cfg.best_checkpoint_metric, metrics_of(criterion), cfg._name)
        if self.cfg.multi_label and not getattr(criterion, "takes_sets", False):
            raise UsageError(
                f"the data have several labels a row, --criterion {cfg._name} takes one; "
                "give --criterion sentence_prediction_mgcrp"
            )
        if str(self.cfg.head_fusion) == "sum_loss" and not getattr(criterion, "adds_losses", False):
            raise UsageError(
                f"--head-fusion sum_loss has two losses, --criterion {cfg._name} one; "
                "give --criterion sentence_prediction_mgcrp"
            )
        return criterion

    @staticmethod
    def logging_outputs_can_be_summed(criterion: Any) -> bool:
        """Whether processes sum what a criterion logs, instead of gathering it: in training, for this package's own."""
        in_training = criterion.training and getattr(criterion, "sums_in_training", False)
        return in_training or bool(criterion.logging_outputs_can_be_summed())

    def optimizer_step(self, optimizer: Any, model: Any, update_num: int) -> None:
        """Update the parameters, each with its own learning rate."""
        with scaled_groups(optimizer) if self._scales_learning_rates else contextlib.nullcontext():
            optimizer.step()

    @functools.cached_property
    def run_name(self) -> str:
        """Head and seed, for messages about one of many runs."""
        head = "cls" if str(self.cfg.head_fusion) == "cls" else str(self.cfg.head_pooling)
        return f"head {head}, seed {self.cfg.seed}"

    def count_step(self, done: bool) -> None:
        """Count a step of the training that ended with an update, or without one."""
        self._updates += done
        self.skipped_steps += not done

    def state_dict(self) -> dict[str, Any]:
        """What a checkpoint keeps of the task: names and weights of the classes, in order, and the special tokens.

        Raises:
            UsageError: if a training has made no update at all, since every gradient overflowed.
        """
        if self.skipped_steps and not self._updates:
            raise UsageError(
                f"the gradients of all {self.skipped_steps} steps overflowed and nothing was learned: "
                f"{os.path.abspath(self.cfg.save_dir)}; lower --lr, or leave out --fp16 or --amp"
            )
        state = {"label_names": list(self.label_names), **{name: self.cfg[name] for name in SPECIAL_TOKENS}}
        return state if self.class_weights is None else {**state, "class_weights": list(self.class_weights)}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Take over a checkpoint's special tokens and order of labels: the data's labels are translated by name.

        Raises:
            UsageError: if the data has other labels than the checkpoint.
        """
        if self.cfg.init_token is None:
            self.cfg.update({name: state_dict.get(name, self.cfg[name]) for name in SPECIAL_TOKENS})
        names = list(state_dict.get("label_names", self.label_names))
        position = {name_key(name): index for index, name in enumerate(names)}
        folded = [name_key(name) for name in self.data_label_names]
        if sorted(position) != sorted(folded):
            raise UsageError(
                f"the checkpoint has the labels {', '.join(names) or 'of a regression'}, "
                f"the data {', '.join(self.data_label_names) or 'numbers'}: "
                f"{os.path.abspath(self.cfg.data)}; give data with the same labels"
            )
        self.label_names = names
        self.class_weights = state_dict.get("class_weights")
        self._translation[:] = [position[name] for name in folded]


def _load_dictionary(task: type[SentencePredictionTask], file: Path) -> Dictionary:
    read_dictionary(file)  # tells what is wrong with it
    return task.load_dictionary(str(file))
