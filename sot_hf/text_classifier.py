"""A text classifier with scikit-learn's interface: a trained head on a frozen encoder."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
from torch import Tensor, nn

from sot_base.device import choose_device
from sot_base.errors import UsageError
from sot_hf.configuration import SoTConfig
from sot_hf.load_config import load_config, saved_labels
from sot_hf.load_model import MULTI_LABEL
from sot_hf.token_states import MAX_TOKENS, TextEncoder, head_of, rows_digest, saved_layers
from sot_probe.estimator import HeadClassifier
from sot_probe.estimator_input import as_layers, check_positive
from sot_probe.layer_head import LayerHead
from sot_probe.row_cache import RowCache
from sot_probe.states import TokenStates

__all__ = ["TextClassifier"]

MODELS_KEPT = 2  # loaded encoders to keep, so that a cross-validation loads and runs each of them once


class TextClassifier(HeadClassifier):
    """Classify texts, or pairs of texts, with a head on the token states of a frozen encoder.

    The encoder runs once for each text: up to 1 GiB of states stay in memory and are reused, also between the folds of
    a cross-validation.

    Args:
        encoder: ``minilm``, ``gpt``, a folder, or a name on the Hugging Face Hub.
        max_length: Maximum number of tokens of a text; None: 128, or less if the encoder takes less.
        **kwargs: As `sot_probe.estimator.HeadClassifier`.

    Example:
        >>> texts, labels = ["a fine film", "dull", "moving and funny", "a waste of time"], ["good", "bad"] * 2
        >>> TextClassifier("minilm", random_state=0).fit(texts, labels).predict(["a joy to watch"])  # doctest: +SKIP
        array(['good'], dtype='<U4')
    """

    def __init__(
        self,
        encoder: str = "minilm",
        *,
        max_length: int | None = None,
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
        super().__init__(
            head=head,
            head_options=head_options,
            layers=layers,
            layer_pair=layer_pair,
            epochs=epochs,
            lr=lr,
            batch_size=batch_size,
            weight_decay=weight_decay,
            class_weight=class_weight,
            early_stopping=early_stopping,
            validation_fraction=validation_fraction,
            n_iter_no_change=n_iter_no_change,
            random_state=random_state,
            device=device,
        )
        self.encoder = encoder
        self.max_length = max_length

    def _open_encoder(self) -> _CachedEncoder:
        check_positive("max_length", self.max_length, whole=True, owner=type(self).__name__)
        layers = as_layers(self.layers)
        return _cached_encoder(self.encoder, layers, self.max_length, str(choose_device(self.device)))

    def _open_saved(self, folder: Path) -> tuple[_CachedEncoder, LayerHead]:
        check_positive("max_length", self.max_length, whole=True, owner=str(folder.absolute()))
        config = load_config(str(folder))
        names = [str(label) for label in self.classes_.tolist()]
        if not isinstance(config, SoTConfig) or saved_labels(config) != names:
            raise UsageError(f"not a model of the classes {', '.join(names)}: {folder.absolute()}; save it again")
        device = choose_device(self.device)
        encoder = TextEncoder(str(folder), saved_layers(config), self.max_length, device=device)
        return _CachedEncoder(encoder), head_of(encoder.model)

    def _save_model(self, folder: Path) -> None:
        encoder = self.encoder_.encoder
        names = {number: str(label) for number, label in enumerate(self.classes_.tolist())}
        kind = MULTI_LABEL if self.multi_label_ else "single_label_classification"
        model = encoder.model_with(self.head_, self._head_settings(), names, kind)
        encoder.save(model, folder)


class _CachedEncoder:
    """A `TextEncoder` that keeps the states of texts in memory, see `sot_probe.estimator.RowEncoder`."""

    def __init__(self, encoder: TextEncoder) -> None:
        self.encoder, self.start = encoder, encoder.start
        self.cache = RowCache()

    def states(self, rows: Sequence[Any]) -> TokenStates:
        """The states of texts or pairs of texts."""
        encodings = self.encoder.tokenize(rows)
        lengths = np.array([len(row["input_ids"]) for row in encodings])
        return self.cache.states(
            rows_digest(encodings),
            lengths,
            lambda chosen: self.encoder.encode([encodings[row] for row in chosen.tolist()]),
            MAX_TOKENS,
        )

    def create_head(self, settings: Mapping[str, Any], num_classes: int, start: Mapping[str, Tensor]) -> nn.Module:
        """A head on this encoder."""
        return self.encoder.create_head(settings, num_classes, start)


@lru_cache(maxsize=MODELS_KEPT)
def _cached_encoder(encoder: str, layers: tuple[int, ...], max_length: int | None, device: str) -> _CachedEncoder:
    return _CachedEncoder(TextEncoder(encoder, layers, max_length, device=device))
