"""Use a fine-tuned checkpoint from Python: predict label names and probabilities, or evaluate a data set."""

from __future__ import annotations

import copy
import os
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from fairseq import checkpoint_utils
from fairseq.data import FairseqDataset
from fairseq.modules import MultiheadAttention
from torch import Tensor

from sot_base.device import choose_device
from sot_base.errors import UsageError
from sot_fairseq.data.dataset import SentenceDataset
from sot_fairseq.data.header import HEADER, DataHeader
from sot_fairseq.data.targets import target_array
from sot_fairseq.fairseq_patches.safe_loading import read_checked_checkpoint, task_settings, upgrade
from sot_fairseq.runs.checks import DESCRIPTION_FILES
from sot_fairseq.tokenizers.tokenization import TextEncoder
from sot_text.metrics import compute_metrics
from sot_text.precision import forward_in, quantized
from sot_text.prediction import Prediction, check_finite_logits, predictions_from

__all__ = ["Prediction", "SentencePredictor", "from_pretrained"]

CHECKPOINTS = ("checkpoint_best.pt", "checkpoint_last.pt")
Sentence = str | Sequence[str]


class SentencePredictor:
    """A fine-tuned model with its task and tokenizer; made by :func:`from_pretrained`.

    Args:
        model: The model, in evaluation mode.
        task: Its task.
        encoder: Its tokenizer, or None where the folder has none: then only :meth:`evaluate` works.
        head: Name of the classification head.
        header: What the preprocessed data say of themselves, or None.
        training_data: The folder the model was trained on.
    """

    def __init__(
        self,
        model: Any,
        task: Any,
        encoder: TextEncoder | None,
        head: str,
        header: DataHeader | None,
        training_data: str,
    ) -> None:
        self.model, self.task, self.encoder, self.head, self.header = model.eval(), task, encoder, head, header
        self.training_data = training_data
        self.regression = bool(task.cfg.regression_target)
        self.multi_label = bool(task.cfg.multi_label)
        self._forward: Callable[[Tensor], Tensor] = partial(_forward, self.model, head=head)

    @property
    def labels(self) -> list[str]:
        """Names of the classes in the order of the logits; empty for regression."""
        return list(self.task.label_names)

    @property
    def num_inputs(self) -> int | None:
        """1 for single texts, 2 for pairs; None where the data did not say."""
        return self.header.num_inputs if self.header else None

    def in_precision(self, precision: str) -> SentencePredictor:
        """This predictor in another precision.

        Args:
            precision: ``float32``; ``bfloat16`` (autocast); or ``int8``, dynamic quantization of the encoder's linear
                layers, on a CPU.

        Raises:
            UsageError: for another precision, for ``int8`` on another device, or for an encoder without linear layers.
        """
        copied = copy.copy(self)
        copied._forward = forward_in(precision, self.model, partial(_forward, head=self.head), _quantized)
        return copied

    def predict(self, sentences: Sequence[Sentence], batch_size: int = 64, threshold: float = 0.5) -> list[Prediction]:
        """Predict sentences, or pairs of them, in the order given.

        Args:
            sentences: Texts, or ``(first, second)`` tuples of texts, as the model was trained.
            batch_size: Rows computed at once (> 0); rows of similar length go together.
            threshold: Probability from which a model that gives several labels gives a label.

        Raises:
            UsageError: for a row that is not a text, or single texts where pairs are wanted or the reverse.
        """
        return predictions_from(self.logits(sentences, batch_size), self.labels, self.multi_label, threshold)

    def logits(self, sentences: Sequence[Sentence], batch_size: int = 64) -> Tensor:
        """Logits of sentences or pairs.

        Shape:
            rows -> (rows, K), float32, on the CPU.
        """
        sentences = _listed(sentences)
        if not sentences:
            return torch.zeros(0, self.task.cfg.num_classes)
        return self._logits_of(self._dataset(sentences), batch_size)

    def evaluate(
        self,
        data: str | os.PathLike[str] | None = None,
        split: str = "valid",
        batch_size: int = 64,
        metrics: Sequence[str] | None = None,
    ) -> dict[str, float]:
        """Metrics over a whole preprocessed split, in percent.

        Args:
            data: Folder of ``python -m sot_fairseq.preprocess``; default: the training data.
            split: Name of the split in it.
            batch_size: Rows computed at once (> 0).
            metrics: Names; default: those of the task the data were made for.

        Raises:
            UsageError: if the split is absent, has no labels or other ones, or was made for another vocabulary.
        """
        dataset = self.task_for(data or self.training_data).load_dataset(split)
        samples = dataset.dataset
        if "target" not in samples.defn:
            raise UsageError(f"split {split!r} has no labels: {data or self.training_data}; nothing to compare with")
        logits = self._logits_of(samples.defn["net_input.src_tokens"].dataset, batch_size)
        targets = target_array(samples.defn["target"])
        if self.regression:
            predictions = logits[:, 0].numpy()
        else:
            predictions = (logits > 0 if self.multi_label else logits.argmax(dim=-1)).numpy()
        names = metrics or (self.header.metrics if self.header else ("pearson",) if self.regression else ("accuracy",))
        classes = None if self.regression else logits.shape[-1]
        where = f"split {split!r}, {self.task.run_name}"
        values = compute_metrics(list(names), predictions, targets, classes, self.labels, where)
        return {name: 100.0 * value for name, value in values.items()}

    def task_for(self, data: str | os.PathLike[str]) -> Any:
        """Set up the task for another folder of data, with this model's order of labels.

        Args:
            data: Folder of ``python -m sot_fairseq.preprocess``.

        Raises:
            UsageError: if the data was made for another vocabulary or from another number of texts a row.
        """
        cfg = copy.deepcopy(self.task.cfg)
        cfg.data = os.fspath(data)
        if not self.regression:
            cfg.num_classes = -1  # the data's own; other labels than the model's are told by name
        task = type(self.task).setup_task(cfg, from_checkpoint=True)
        task.load_state_dict(self.task.state_dict())
        if task.source_dictionary != self.task.source_dictionary:
            raise UsageError(f"made for another vocabulary: {os.path.abspath(data)}; preprocess it for this encoder")
        if self.header and (Path(data) / HEADER).is_file():
            self._check_header(DataHeader.load(data), os.path.abspath(data))
        return task

    def _check_header(self, header: DataHeader, data: str) -> None:
        """Refuse data whose texts were treated otherwise than those the model learned from."""
        if header.num_inputs != self.num_inputs:
            raise UsageError(
                f"{header.num_inputs} text(s) a row, but the model was trained on {self.num_inputs}: {data}; "
                "give data of its kind"
            )
        if self.encoder is not None and header.moses_detokenize != self.encoder.moses_detokenize:
            how = "with" if self.encoder.moses_detokenize else "without"
            raise UsageError(
                f"the model was trained {how} --moses-detokenize, the data were made otherwise: {data}; "
                f"preprocess them {how} it"
            )

    def _dataset(self, sentences: Sequence[Sentence]) -> SentenceDataset:
        rows = self.check_rows(sentences)
        return self.join([self.encoder.encode_batch([row[i] for row in rows]) for i in range(len(rows[0]))])

    def check_rows(self, sentences: Sequence[Sentence]) -> list[tuple[str, ...]]:
        """The rows as tuples of as many texts as the model was trained on.

        Raises:
            UsageError: for a row that is something else, or where the folder has no tokenizer.
        """
        if self.encoder is None:
            raise UsageError(
                f"no tokenizer beside the checkpoint: {os.path.abspath(self.task.cfg.data)}/tokenizer; "
                "preprocess the data with python -m sot_fairseq.preprocess and train again"
            )
        rows = [tuple(row) if isinstance(row, (tuple, list)) else (row,) for row in sentences]
        wanted = self.num_inputs or len(rows[0])
        for number, row in enumerate(rows):
            if len(row) != wanted or not all(isinstance(text, str) for text in row):
                raise UsageError(
                    f"expected {wanted} text(s), got {row!r}: row {number}; give what the model was trained on"
                )
        return rows

    def join(self, parts: Sequence[Sequence[np.ndarray]]) -> SentenceDataset:
        """One sequence a row from the encoded first texts and perhaps second ones, shortened as in training."""
        cfg = self.task.cfg
        second = _Encoded(parts[1]) if len(parts) == 2 else None
        longest = self.task.max_positions()
        if self.header and self.header.max_length is not None:
            longest = min(longest, self.header.max_length)  # as the data were shortened
        return SentenceDataset(_Encoded(parts[0]), second, cfg.init_token, cfg.separator_token, longest, "sentences")

    @torch.no_grad()
    def _logits_of(self, tokens: FairseqDataset, batch_size: int) -> Tensor:
        if batch_size < 1:
            raise UsageError(f"batch_size must be positive, got {batch_size}")
        device = next(self.model.parameters()).device
        order = np.argsort(tokens.sizes, kind="stable")
        output: Tensor | None = None
        for start in range(0, len(order), batch_size):
            rows = order[start : start + batch_size]
            batch = torch.nn.utils.rnn.pad_sequence(
                [tokens[row] for row in rows], batch_first=True, padding_value=self.task.source_dictionary.pad()
            )
            logits = self._forward(batch.to(device))
            if output is None:
                output = torch.empty(len(order), logits.shape[-1])
            output[torch.from_numpy(rows)] = logits.float().cpu()
        if output is None:
            return torch.empty(0, self.task.cfg.num_classes)
        check_finite_logits(output, "the checkpoint", "its training has failed, train with a lower --lr")
        return output


def _forward(model: Any, tokens: Tensor, head: str) -> Tensor:
    logits: Tensor
    logits, _ = model(tokens, features_only=True, classification_head_name=head)
    return logits


def _quantized(model: Any) -> Any:
    """A copy whose encoder multiplies in int8, attention too: in fairseq's own code; torch's needs float32 weights."""
    copied = quantized(model, "encoder.sentence_encoder", "the encoder")
    for module in copied.modules():
        if isinstance(module, MultiheadAttention):
            module._set_skip_embed_dim_check()  # chooses fairseq's own code
    return copied


def _listed(sentences: Sequence[Sentence]) -> list[Sentence]:
    """The rows as a list; one text alone would be read as a list of its letters."""
    if isinstance(sentences, (str, bytes)) or not isinstance(sentences, Iterable):
        raise UsageError(f"expected a list of texts, got {sentences!r}; put it into brackets")
    return list(sentences)


class _Encoded(FairseqDataset):
    """Encoded texts in memory."""

    def __init__(self, rows: Sequence[np.ndarray]) -> None:
        super().__init__()
        self.rows = rows
        self.sizes = np.array([len(row) for row in rows])

    def __getitem__(self, index: int) -> Tensor:
        return torch.from_numpy(self.rows[index])

    def __len__(self) -> int:
        return len(self.rows)


def from_pretrained(
    path: str | os.PathLike[str],
    checkpoint_file: str | None = None,
    head: str | None = None,
    data: str | os.PathLike[str] | None = None,
    device: str | torch.device = "cpu",
) -> SentencePredictor:
    """Load a fine-tuned checkpoint.

    Args:
        path: The ``--save-dir`` of a training, or a checkpoint file in it.
        checkpoint_file: File in that folder; default: ``checkpoint_best.pt``, else ``checkpoint_last.pt``.
        head: Name of the classification head; default: the one the checkpoint was trained with.
        data: Folder with the dictionaries; default: the checkpoint's own folder, else the training data.
        device: Where the model goes.

    Raises:
        UsageError: if a file is absent, no fairseq checkpoint, or has no such head, or the device is not there.

    Example:
        >>> predictor = sot_fairseq.from_pretrained("out/rte/seed-1")  # doctest: +SKIP
        >>> predictor.predict([("A cat sleeps.", "An animal rests.")])[0].label  # doctest: +SKIP
        'entailment'
    """
    device = choose_device(device)
    checkpoint = _find_checkpoint(Path(path), checkpoint_file)
    state = read_checked_checkpoint(checkpoint, to_build=True)
    settings = task_settings(state)
    if settings.get("_name") != "sentence_prediction_mgcrp":
        raise UsageError(
            f"no classifier of this toolkit: {checkpoint.absolute()}; give one trained with "
            "--task sentence_prediction_mgcrp"
        )
    heads = sorted({key.split(".")[1] for key in state["model"] if key.startswith("classification_heads.")})
    trained = settings.get("classification_head_name")
    head = head or (heads[0] if len(heads) == 1 else trained)
    if head not in heads:
        raise UsageError(
            f"no classification head {head!r}: {checkpoint.absolute()} has {', '.join(heads)}; name one of them"
        )
    folder = Path(data) if data is not None else checkpoint.parent
    training_data = settings.get("data") or ""
    if data is None and not (folder / "input0" / "dict.txt").is_file():
        folder = Path(training_data)
        if not (folder / "input0" / "dict.txt").is_file():
            raise UsageError(
                f"no dictionary beside the checkpoint: {checkpoint.parent.absolute()}/input0/dict.txt; copy "
                f"{', '.join(DESCRIPTION_FILES)} of the training data there, or give data="
            )
    overrides = {"data": str(folder), "classification_head_name": head, "load_checkpoint_heads": False}
    state = upgrade(state, overrides, str(checkpoint.absolute()))
    models, _, task = checkpoint_utils.load_model_ensemble_and_task([str(checkpoint)], state=state)
    tokenizer = folder / "tokenizer"
    header = DataHeader.load(folder) if (folder / HEADER).is_file() else None
    encoder = None
    if tokenizer.is_dir():
        encoder = TextEncoder.from_folder(tokenizer, moses_detokenize=bool(header and header.moses_detokenize))
    return SentencePredictor(models[0].to(device), task, encoder, head, header, training_data)


def _find_checkpoint(path: Path, checkpoint_file: str | None) -> Path:
    if path.is_file():
        return path
    names = CHECKPOINTS if checkpoint_file is None else (checkpoint_file,)
    for name in names:
        if (path / name).is_file():
            return path / name
    raise UsageError(f"no {' or '.join(names)}: {path.absolute()}; give the --save-dir of a training")
