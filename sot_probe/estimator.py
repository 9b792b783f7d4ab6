"""Base class of the estimators with scikit-learn's interface: a head on a frozen encoder."""

from __future__ import annotations

import json
import os
from abc import ABC, abstractmethod
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Protocol, Self

import numpy as np
import torch
from sklearn.base import BaseEstimator, ClassifierMixin
from sklearn.metrics import f1_score
from sklearn.utils.validation import check_is_fitted
from torch import Tensor, nn

from sot_base.atomic import atomic_folder
from sot_base.device import choose_device
from sot_base.errors import UsageError
from sot_base.small_files import read_json
from sot_core.options import HEAD_OPTIONS
from sot_probe.estimator_input import (
    as_labels,
    as_layers,
    as_rows,
    check_layer_pair,
    check_positive,
    draw_seed,
    weights_by_label,
)
from sot_probe.grid import HEAD_NAMES, fits_pair, head_fields
from sot_probe.held_out import hold_out
from sot_probe.layer_head import LayerHead
from sot_probe.objective import Kind, Objective, as_targets, weigh_classes
from sot_probe.states import TokenStates
from sot_probe.trainee import Candidate, TrainingSettings
from sot_probe.training import Split, predict, require_success, train_heads

__all__ = ["HeadClassifier", "RowEncoder"]

FILE = "estimator.json"
EPOCHS = 8  # of a training whose number of epochs is not given,
MIN_UPDATES = 300  # or more epochs, until it has this many updates


class RowEncoder(Protocol):
    """The frozen encoder of an estimator.

    Attributes:
        start: Initial weights of heads, by parameter name.
    """

    start: Mapping[str, Tensor]

    def states(self, rows: Any) -> TokenStates:
        """Encode rows in the form that users pass to ``fit``."""

    def create_head(self, settings: Mapping[str, Any], num_classes: int, start: Mapping[str, Tensor]) -> nn.Module:
        """Create a head from fields of `HeadConfig` and its initial weights."""


class HeadClassifier(ClassifierMixin, BaseEstimator, ABC):  # type: ignore[misc]
    """A classifier with a frozen encoder and a trained head; subclasses provide the encoder.

    Args:
        head: One of `sot_probe.grid.HEAD_NAMES`: ``mgcrp``, ``cls``, ``attention``, ``gap-words``...
        head_options: Options of the head, by their names on the command line: ``{"mgcrp_heads": 8}``.
        layers: The layer to read (0 the embeddings, -1 the last one), or a list of layers, of which a learned weighted
            sum is read.
        layer_pair: How to read two ``layers`` instead, see `sot_core.layer_pair`: ``"words_cls"``, ``"x_y"``; None: the
            sum.
        epochs: Number of epochs; None: 8, or more if 8 epochs are fewer than 300 updates.
        lr: Peak learning rate.
        batch_size: Rows in an update.
        weight_decay: Decoupled weight decay.
        class_weight: Class weights in the loss: ``"balanced"``, a dictionary from label to weight (default: 1),
            or None. For multi-label targets, a weight applies to the rows that have the label.
        early_stopping: Whether to hold out a part of the rows, stop when the score on it no longer improves, and keep
            the best epoch.
        validation_fraction: Share of the rows to hold out for early stopping.
        n_iter_no_change: Number of epochs without improvement after which training stops.
        random_state: Seed of initial weights, order of batches and dropout; None: a random one.
        device: Where to compute; None: a GPU if there is one.

    Attributes:
        classes_: Sorted labels of the classes; for multi-label targets, indices of the columns.
        head_: The trained head.
        encoder_: The encoder.
        multi_label_: Whether the targets are multi-label.
        n_iter_: Number of trained epochs.
    """

    def __init__(
        self,
        *,
        head: str = "mgcrp",
        head_options: Mapping[str, Any] | None = None,
        layers: Any = -1,
        layer_pair: str | None = None,
        epochs: int | None = None,
        lr: float = 1e-3,
        batch_size: int = 32,
        weight_decay: float = 0.1,
        class_weight: Any = None,
        early_stopping: bool = False,
        validation_fraction: float = 0.1,
        n_iter_no_change: int = 5,
        random_state: Any = None,
        device: str | None = None,
    ) -> None:
        self.head = head
        self.head_options = head_options
        self.layers = layers
        self.layer_pair = layer_pair
        self.epochs = epochs
        self.lr = lr
        self.batch_size = batch_size
        self.weight_decay = weight_decay
        self.class_weight = class_weight
        self.early_stopping = early_stopping
        self.validation_fraction = validation_fraction
        self.n_iter_no_change = n_iter_no_change
        self.random_state = random_state
        self.device = device

    @abstractmethod
    def _open_encoder(self) -> RowEncoder:
        """Load the encoder that the parameters describe."""

    @abstractmethod
    def _open_saved(self, folder: Path) -> tuple[RowEncoder, LayerHead]:
        """Load encoder and head from a saved folder."""

    @abstractmethod
    def _save_model(self, folder: Path) -> None:
        """Write encoder and head into a folder."""

    def fit(self, X: Any, y: Any) -> Self:
        """Train the head.

        Args:
            X: The rows.
            y: Their labels (strings or numbers), or for multi-label targets a matrix (rows, K) of 0 and 1.

        Raises:
            UsageError: for an unknown head or option, different numbers of rows and labels, or a single class.
        """
        rows = as_rows(X)
        y, kind_of_labels = as_labels(y)
        if len(rows) != len(y):
            raise UsageError(f"{len(rows)} rows and {len(y)} labels: fit; give a label for each row")
        self.multi_label_ = kind_of_labels == "multilabel-indicator"
        kind: Kind = "sets" if self.multi_label_ else "classes"
        if self.multi_label_:
            self.classes_, targets = np.arange(y.shape[1]), y.astype(bool)
        else:
            self.classes_, targets = np.unique(y, return_inverse=True)
            if len(self.classes_) < 2:
                raise UsageError(
                    f"all rows have the label {self.classes_.tolist()[0]!r}: fit; give rows of two classes at least"
                )
        self.encoder_ = self._open_encoder()
        objective = Objective(kind, len(self.classes_), self._class_weights(as_targets(targets, kind), kind))
        seed = draw_seed(self.random_state)
        candidate = Candidate(self._create_head, self._settings(len(rows)))
        data = Split(self.encoder_.states(rows), as_targets(targets, kind))
        train, watch = data, {}
        if self.early_stopping:
            fraction = self.validation_fraction
            kept, held = hold_out(targets, fraction, kind, seed, option="validation_fraction")
            train, watch = data.subset(kept), {"held-out": data.subset(held)}
        outcomes = train_heads(
            [candidate],
            train,
            objective,
            seed,
            watch=watch,
            measure=_f1 if self.multi_label_ else _accuracy,
            main_metric="score",
            patience=self.n_iter_no_change,
            device=choose_device(self.device),
        )
        require_success(outcomes)
        self.head_, self.n_iter_ = outcomes[0].head, len(outcomes[0].history) or candidate.settings.epochs
        return self

    def _create_head(self) -> LayerHead:
        head = self.encoder_.create_head(self._head_settings(), len(self.classes_), self.encoder_.start)
        count = len(as_layers(self.layers))
        return LayerHead(head, 0, count if count > 1 and self.layer_pair is None else 0, pair=self.layer_pair)

    def _head_settings(self) -> dict[str, Any]:
        """Fields of `HeadConfig`."""
        two_layers = {"two_layers": True} if self.layer_pair == "x_y" else {}
        return head_fields(self.head, dict(self.head_options or {})) | two_layers

    def _settings(self, rows: int) -> TrainingSettings:
        """Check the parameters and return the training settings.

        Raises:
            UsageError: naming the parameter that is out of range.
        """
        known = {option.name for option in HEAD_OPTIONS} - {"head_pooling"}
        unknown = [name for name in self.head_options or {} if name not in known]
        if self.head not in HEAD_NAMES or unknown:
            what = f"head {self.head!r}" if self.head not in HEAD_NAMES else f"option {unknown[0]!r} of a head"
            names = HEAD_NAMES if self.head not in HEAD_NAMES else sorted(known)
            raise UsageError(f"no such {what}: {type(self).__name__}; give one of {', '.join(names)}")
        if self.layer_pair is not None:
            check_layer_pair(self.layer_pair, self.layers, owner=type(self).__name__)
            if not fits_pair(self.head, self.layer_pair):
                raise UsageError(f"not for layer_pair {self.layer_pair!r}: head {self.head!r}; give head='mgcrp'")
        for name in ("lr", "batch_size", "epochs", "n_iter_no_change"):
            may_be_none = name in ("epochs", "n_iter_no_change")
            owner = type(self).__name__
            check_positive(name, getattr(self, name), whole=name != "lr", owner=owner, none=may_be_none)
        check_positive("weight_decay", self.weight_decay, whole=False, owner=type(self).__name__, zero=True)
        updates = -(-rows // self.batch_size)
        epochs = max(EPOCHS, -(-MIN_UPDATES // updates)) if self.epochs is None else self.epochs
        return TrainingSettings(self.lr, self.batch_size, epochs, self.weight_decay)

    def _class_weights(self, targets: Tensor, kind: Kind) -> Tensor | None:
        if self.class_weight is None:
            return None
        if isinstance(self.class_weight, str):
            names = [str(label) for label in self.classes_]
            return weigh_classes(self.class_weight, names, targets, kind, option="class_weight")
        return torch.tensor(weights_by_label(self.class_weight, self.classes_.tolist()), dtype=torch.float32)

    def _logits(self, X: Any) -> Tensor:
        check_is_fitted(self, "head_")
        rows = as_rows(X)
        if not rows:
            return torch.zeros(0, len(self.classes_))
        return predict([self.head_], self.encoder_.states(rows))[0]

    def predict_proba(self, X: Any) -> np.ndarray:
        """Probability of each class, (rows, K); independent for multi-label targets."""
        return Objective("sets" if self.multi_label_ else "classes", len(self.classes_)).probabilities(self._logits(X))

    def predict(self, X: Any) -> np.ndarray:
        """The most probable label of each row (rows,); for multi-label targets those above one half, (rows, K)."""
        logits = self._logits(X)
        if self.multi_label_:
            return (logits > 0).numpy().astype(np.int64)
        return np.asarray(self.classes_[logits.argmax(dim=1).numpy()])

    def save_pretrained(self, folder: str | os.PathLike[str]) -> None:
        """Write encoder, head and parameters into a folder; an earlier saved classifier there is replaced.

        Raises:
            UsageError: if the folder holds anything else, which would be lost.
        """
        check_is_fitted(self, "head_")
        target = Path(folder).resolve()
        if target.is_dir() and any(target.iterdir()) and not (target / FILE).is_file():
            raise UsageError(f"a folder of other files: {target}; give a new one to save in")
        params = {name: _plain(value) for name, value in self.get_params(deep=False).items()}
        content = {"params": params, "classes": self.classes_.tolist(), "multi_label": self.multi_label_}
        with atomic_folder(target) as temporary:
            self._save_model(temporary)
            (temporary / FILE).write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")

    @classmethod
    def from_pretrained(cls, folder: str | os.PathLike[str], device: str | None = None) -> Self:
        """Load what :meth:`save_pretrained` wrote.

        Raises:
            UsageError: if the folder lacks a file, or a file is damaged.
        """
        remedy = f"give a folder that {cls.__name__}.save_pretrained wrote"
        content = read_json(Path(folder) / FILE, dict[str, Any], remedy)
        params, labels = content.get("params"), content.get("classes")
        known = set(cls._get_param_names())
        are_labels = isinstance(labels, list) and all(isinstance(label, str | int | float) for label in labels)
        if not isinstance(params, dict) or not set(params) <= known or not are_labels or not labels:
            raise UsageError(f"not the parameters of {cls.__name__}: {Path(folder).absolute() / FILE}; {remedy}")
        if isinstance(params.get("class_weight"), dict):  # keys of JSON are strings
            by_name = {str(label): label for label in labels}
            params["class_weight"] = {by_name.get(key, key): value for key, value in params["class_weight"].items()}
        found = cls(**{**params, "device": device})
        found.classes_, found.multi_label_ = np.array(labels), bool(content.get("multi_label"))
        found.encoder_, found.head_ = found._open_saved(Path(folder))
        return found

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.string = True
        tags.input_tags.two_d_array = False
        tags.classifier_tags.multi_label = True
        return tags


def _accuracy(predictions: np.ndarray, targets: np.ndarray) -> dict[str, float]:
    return {"score": 100.0 * float((predictions == targets).mean())}


def _f1(predictions: np.ndarray, targets: np.ndarray) -> dict[str, float]:
    return {"score": 100.0 * float(f1_score(targets, predictions, average="micro", zero_division=0.0))}


def _plain(value: Any) -> Any:
    """A parameter as JSON; None for what JSON cannot hold, such as a random generator."""
    if isinstance(value, np.generic):
        return value.item()
    if isinstance(value, os.PathLike):
        return os.fspath(value)
    if isinstance(value, Mapping):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    return value if isinstance(value, str | int | float | bool | None) else None
