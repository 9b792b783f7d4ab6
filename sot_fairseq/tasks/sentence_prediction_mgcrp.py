"""The task ``sentence_prediction_mgcrp``: fairseq's sentence prediction with second-order classification heads."""

from __future__ import annotations

import contextlib
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
    RawLabelDataset,
    RightPadDataset,
    data_utils,
)
from fairseq.models import ARCH_CONFIG_REGISTRY, ARCH_MODEL_REGISTRY
from fairseq.models.roberta import RobertaModel
from fairseq.tasks import register_task
from fairseq.tasks.sentence_prediction import SentencePredictionTask
from omegaconf import OmegaConf, open_dict

from sot_base.errors import UsageError
from sot_core.options import HEAD_OPTIONS, head_settings
from sot_fairseq.data.dataset import BatchedDataset, LabelDataset, SentenceDataset
from sot_fairseq.data.header import HEADER, DataHeader
from sot_fairseq.data.indexed import check_indexed
from sot_fairseq.models.sot_roberta import SoTRobertaModel
from sot_fairseq.runs.checks import check_best_metric, check_run
from sot_fairseq.runs.learning_rates import scale_learning_rates, scaled_groups
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
        starts_training: Whether the task was set up for a training, not for a checkpoint.
        skipped_steps: Steps without an update, for gradients that overflowed.
    """

    starts_training = False
    skipped_steps = 0
    _updates = 0
    _scales_learning_rates = False

    def __init__(self, cfg: Any, data_dictionary: Dictionary, label_dictionary: Dictionary) -> None:
        super().__init__(cfg, data_dictionary, label_dictionary)
        self.data_label_names = [] if cfg.regression_target else _label_names(label_dictionary)
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
                    f"--{name.replace('_', '-')} plays no part in this task; leave it out "
                    "(sequences are cut to --max-positions, the longer sentence first)"
                )
        files = [Path(cfg.data) / "input0" / "dict.txt"]
        if not cfg.regression_target:
            files.append(Path(cfg.data) / "label" / "dict.txt")
        for file in files:
            if not file.is_file():
                raise UsageError(
                    f"no dictionary: {file.absolute()}; make the data with python -m sot_fairseq.preprocess"
                )
        dictionaries = [_load_dictionary(cls, file) for file in files]
        labels = None if cfg.regression_target else _label_names(dictionaries[-1])
        if cfg.num_classes < 1:
            cfg.num_classes = 1 if labels is None else len(labels)
        if labels is not None and len(labels) != cfg.num_classes:
            raise UsageError(
                f"--num-classes {cfg.num_classes}, but {files[-1].absolute()} has {len(labels)} labels "
                f"({', '.join(labels)}); give --num-classes {len(labels)}"
            )
        if cfg.init_token is None and (Path(cfg.data) / HEADER).is_file():
            header = DataHeader.load(cfg.data)
            cfg.init_token, cfg.separator_token = header.init_token, header.separator_token
        if not kwargs.get("from_checkpoint", False):
            check_run(cfg)
        task = cls(cfg, dictionaries[0], dictionaries[-1])
        task.starts_training = not kwargs.get("from_checkpoint", False)
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
        if self.cfg.regression_target:
            path += ".label"
            if not os.path.exists(path):
                return None
            targets: Any = RawLabelDataset(_read_numbers(path, self.cfg.num_classes))
        else:
            labels = self._load("label", split, self.label_dictionary, combine)
            if labels is None:
                return None
            first = self.label_dictionary.nspecial
            classes = np.array([int(labels[row][0]) - first for row in range(len(labels))], dtype=np.int64)
            wrong = np.flatnonzero((classes < 0) | (classes >= len(self.data_label_names)))
            if len(wrong):
                number = int(classes[wrong[0]]) + first
                raise UsageError(
                    f"row {wrong[0] + 1} of split {split!r} has label {self.label_dictionary[number]!r}: {path}; "
                    f"the labels are {', '.join(self.data_label_names)}: run sot_fairseq.preprocess again"
                )
            targets = LabelDataset(classes, self._translation)
        if len(targets) != rows:
            raise UsageError(f"split {split!r} has {rows} rows but {len(targets)} labels: {path}; preprocess it again")
        return targets

    def build_model(self, cfg: Any, from_checkpoint: bool = False) -> SoTRobertaModel:
        """Build the encoder that ``--arch`` names and its head.

        fairseq's own RoBERTa is built as this package's subclass of it, which hands heads the padding mask.

        Raises:
            UsageError: for an arch that is no RoBERTa or BERT, or a head that cannot be built.
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
        model.freeze_backbone = self.cfg.freeze_backbone
        model.allow_partial = self.cfg.partial_backbone
        model.strict_head = self.cfg.strict_head
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
        criterion = super().build_criterion(cfg, from_checkpoint)
        check_best_metric(self.cfg.best_checkpoint_metric, _metrics_of(criterion), cfg._name)
        if str(self.cfg.head_fusion) == "sum_loss" and not getattr(criterion, "adds_losses", False):
            raise UsageError(
                f"--head-fusion sum_loss has two losses, --criterion {cfg._name} one; "
                "give --criterion sentence_prediction_mgcrp"
            )
        return criterion

    def optimizer_step(self, optimizer: Any, model: Any, update_num: int) -> None:
        """Update the parameters, each with its own learning rate."""
        with scaled_groups(optimizer) if self._scales_learning_rates else contextlib.nullcontext():
            optimizer.step()

    def count_step(self, done: bool) -> None:
        """Count a step of the training that ended with an update, or without one."""
        self._updates += done
        self.skipped_steps += not done

    def state_dict(self) -> dict[str, Any]:
        """What a checkpoint keeps of the task: the names of the classes, in order, and the special tokens.

        Raises:
            UsageError: if a training has made no update at all, since every gradient overflowed.
        """
        if self.skipped_steps and not self._updates:
            raise UsageError(
                f"the gradients of all {self.skipped_steps} steps overflowed and nothing was learned: "
                f"{os.path.abspath(self.cfg.save_dir)}; lower --lr, or leave out --fp16 or --amp"
            )
        return {"label_names": list(self.label_names), **{name: self.cfg[name] for name in SPECIAL_TOKENS}}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Take over a checkpoint's special tokens and order of labels: the data's labels are translated by name.

        Raises:
            UsageError: if the data has other labels than the checkpoint.
        """
        if self.cfg.init_token is None:
            self.cfg.update({name: state_dict.get(name, self.cfg[name]) for name in SPECIAL_TOKENS})
        names = list(state_dict.get("label_names", self.label_names))
        position = {name.casefold(): index for index, name in enumerate(names)}
        folded = [name.casefold() for name in self.data_label_names]
        if sorted(position) != sorted(folded):
            raise UsageError(
                f"the checkpoint has the labels {', '.join(names)}, the data {', '.join(self.data_label_names)}: "
                f"{os.path.abspath(self.cfg.data)}; give data with the same labels"
            )
        self.label_names = names
        self._translation[:] = [position[name] for name in folded]


def _metrics_of(criterion: Any) -> set[str]:
    """The metrics a criterion logs in validation; fairseq's own logs some of them on request."""
    if hasattr(criterion, "metric_names"):
        return set(criterion.metric_names)
    flags = {
        "report_mcc": ("mcc",),
        "report_acc_and_f1": ("acc_and_f1", "f1"),
        "report_pearson_and_spearman": ("pearson_and_spearman", "pearson", "spearman"),
    }
    names = {name for flag, names in flags.items() if getattr(criterion, flag, False) for name in names}
    return names if getattr(criterion, "regression_target", False) else names | {"accuracy"}


def _label_names(dictionary: Dictionary) -> list[str]:
    """The labels of a dictionary in order, without fairseq's special and filler entries."""
    names = dictionary.symbols[dictionary.nspecial :]
    return [name for name in names if name != "<mask>" and not name.startswith("madeupword")]


def _load_dictionary(task: type[SentencePredictionTask], file: Path) -> Dictionary:
    read_dictionary(file)  # tells what is wrong with it
    return task.load_dictionary(str(file))


def _read_numbers(path: str, width: int) -> list[list[float]]:
    rows = []
    with open(path, encoding="utf-8") as lines:
        for number, line in enumerate(lines, start=1):
            try:
                rows.append([float(value) for value in line.split()])
            except ValueError:
                rows.append([])
            if len(rows[-1]) != width:
                raise UsageError(f"expected {width} numbers, found {line.strip()!r}: {path}, line {number}; correct it")
    return rows
