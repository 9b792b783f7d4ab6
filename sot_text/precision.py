"""Prediction in reduced precision, and how far it is from float32: what both text sides share."""

from __future__ import annotations

import copy
import sys
import warnings
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, TypeVar

import numpy as np
import torch
from torch import Tensor, nn

from sot_base.errors import UsageError
from sot_text.command_options import PRECISIONS
from sot_text.prediction import Prediction, Predictor

__all__ = ["ComparedPredictor", "compare_predictions", "forward_in", "quantized"]

COMPARED = 256  # rows

Model = TypeVar("Model", bound=nn.Module)
Inputs = TypeVar("Inputs")


class ComparedPredictor:
    """A faster predictor that compares its first rows with float32 and writes the result to standard error.

    Args:
        predictor: The faster one.
        exact: The one in float32.
        name: What the faster one is called.
    """

    def __init__(self, predictor: Predictor, exact: Predictor, name: str) -> None:
        self.predictor, self.exact, self.name = predictor, exact, name
        self.labels, self.num_inputs = predictor.labels, predictor.num_inputs
        self.compared = False

    def predict(self, sentences: Sequence[tuple[str, ...]], batch_size: int, threshold: float) -> list[Prediction]:
        """As `sot_text.prediction.Predictor`."""
        found = self.predictor.predict(sentences, batch_size, threshold)
        if not self.compared:
            self.compared = True
            expected = self.exact.predict(sentences[:COMPARED], batch_size, threshold)
            told = compare_predictions(found[: len(expected)], expected)
            sys.stderr.write(f"{self.name} against float32: {told}\n")
        return found


def compare_predictions(found: Sequence[Prediction], expected: Sequence[Prediction]) -> str:
    """How predictions differ from those in float32, in one sentence.

    Args:
        found: Predictions of some rows.
        expected: Those of the same rows in float32.
    """
    if expected and not expected[0].probabilities:
        errors = [abs(float(a.label) - float(b.label)) for a, b in zip(found, expected, strict=True)]  # type: ignore[arg-type]
        return f"numbers differ by {np.mean(errors):.3g} on average, {max(errors):.3g} at most"
    same = sum(a.label == b.label for a, b in zip(found, expected, strict=True))
    gaps = [
        abs(value - b.probabilities[name])
        for a, b in zip(found, expected, strict=True)
        for name, value in a.probabilities.items()
    ]
    return (
        f"{same} of {len(expected)} labels are the same; probabilities differ by {np.mean(gaps):.4f} on average, "
        f"{max(gaps):.4f} at most"
    )


def forward_in(
    precision: str,
    model: Model,
    forward: Callable[[Model, Inputs], Tensor],
    quantize: Callable[[Model], Model],
) -> Callable[[Inputs], Tensor]:
    """The forward pass of a model in a precision.

    Args:
        precision: One of `PRECISIONS`.
        model: The model in float32.
        forward: Computes the logits of the model and its inputs.
        quantize: Makes the copy that ``int8`` runs.

    Raises:
        UsageError: for another precision, or from `quantize`.
    """
    if precision not in PRECISIONS:
        raise UsageError(f"no such precision: {precision!r}; give one of {', '.join(PRECISIONS)}")
    if precision == "int8":
        return partial(forward, quantize(model))
    exact = partial(forward, model)
    return torch.autocast(_device(model).type, torch.bfloat16)(exact) if precision == "bfloat16" else exact


def quantized(model: Model, encoder: str, kind: str) -> Model:
    """A copy whose encoder multiplies in int8: dynamic quantization of its linear layers.

    Args:
        model: The model, on a CPU.
        encoder: Name of the encoder among the model's modules.
        kind: What an error calls it.

    Raises:
        UsageError: for a model on another device, or an encoder without linear layers.
    """
    device = _device(model)
    if device.type != "cpu":
        raise UsageError(f"int8 runs on a CPU, the model is on {device}: --precision int8; give --device cpu")
    copied = copy.deepcopy(model)
    part = copied.get_submodule(encoder)
    if not any(isinstance(module, nn.Linear) for module in part.modules()):
        raise UsageError(f"{kind} has no linear layers to quantize: --precision int8; give bfloat16")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch recommends torchao, which is another package
        quantize: Any = torch.ao.quantization.quantize_dynamic
        quantize(part, {nn.Linear}, dtype=torch.qint8, inplace=True)
    return copied


def _device(model: nn.Module) -> torch.device:
    return next(model.parameters()).device
