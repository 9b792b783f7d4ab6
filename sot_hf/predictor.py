"""Use a trained model from Python: predict label names and probabilities, in reduced precision or with ONNX Runtime."""

from __future__ import annotations

import copy
import os
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor
from transformers import PreTrainedTokenizerBase

from sot_base.device import choose_device
from sot_base.errors import UsageError
from sot_hf.batching import PaddingCollator
from sot_hf.error_text import model_location
from sot_hf.load_config import saved_labels
from sot_hf.load_model import MULTI_LABEL, load_trained
from sot_hf.load_tokenizer import load_tokenizer, usable_length
from sot_hf.modeling import SoTForSequenceClassification
from sot_text.precision import forward_in, quantized
from sot_text.prediction import Prediction, check_finite_logits, predictions_from

__all__ = ["TextPredictor"]

Forward = Callable[[dict[str, Tensor]], Tensor]


class TextPredictor:
    """A trained model with its tokenizer.

    Args:
        path: The output folder of `sot_hf.run_glue`, a probe's model, or a name on the Hugging Face Hub.
        tokenizer_name: A tokenizer from elsewhere; None: the model's.
        max_length: Maximum number of tokens of a text; None: 128, or less if the model takes less.
        device: Where the model runs; None: on a GPU if there is one.

    Attributes:
        labels: Names of the classes in the order of the logits; empty for regression.
        num_inputs: None: the model takes single texts and pairs.

    Raises:
        UsageError: for a path that has no trained model, or a device that does not exist.

    Example:
        >>> TextPredictor("sst2-run").predict([("A charming film.",)])[0].label  # doctest: +SKIP
        'positive'
    """

    num_inputs: int | None = None

    def __init__(
        self,
        path: str,
        tokenizer_name: str | None = None,
        max_length: int | None = None,
        device: str | torch.device | None = "cpu",
    ) -> None:
        self.device = choose_device(device)
        self.model = load_trained(path, dtype=torch.float32).eval()
        self.tokenizer: PreTrainedTokenizerBase = load_tokenizer(path, self.model, tokenizer_name)
        self.max_length = usable_length(self.model, self.tokenizer, max_length)
        self.labels: list[str] = saved_labels(self.model.config) or []
        self.multi_label = self.model.config.problem_type == MULTI_LABEL
        self.model.requires_grad_(False).to(self.device)
        self._collate = PaddingCollator(self.tokenizer, self.max_length)
        self._forward = partial(_forward, self.model)

    def in_precision(self, precision: str) -> TextPredictor:
        """This predictor in another precision.

        Args:
            precision: ``float32``; ``bfloat16`` (autocast); or ``int8``, dynamic quantization of the backbone's linear
                layers, on a CPU.

        Raises:
            UsageError: for another precision, for ``int8`` on another device, or for a backbone without linear layers.
        """
        copied = copy.copy(self)
        kind = f"a {self.model.config.backbone.model_type}"
        quantize = partial(quantized, encoder="backbone", kind=kind)
        copied._forward = forward_in(precision, self.model, _forward, quantize)
        return copied

    def on_onnx(self, path: str) -> TextPredictor:
        """This predictor on ONNX Runtime, in float32 on a CPU.

        Args:
            path: A file that `sot_hf.export` wrote of this model.

        Raises:
            UsageError: if onnxruntime is not installed, or the file is not an export of this model.
        """
        copied = copy.copy(self)
        copied.device = torch.device("cpu")
        copied._forward = _onnx_session(path, self.model.config.num_labels)
        return copied

    def predict(
        self, sentences: Sequence[tuple[str, ...]], batch_size: int = 64, threshold: float = 0.5
    ) -> list[Prediction]:
        """Predict texts, or pairs of texts, in the order given.

        Args:
            sentences: Rows of one or two texts.
            batch_size: Rows computed at once (> 0); rows of similar length go together.
            threshold: Probability from which a model that gives several labels gives a label.

        Raises:
            UsageError: for outputs that are not finite.
        """
        return predictions_from(self.logits(sentences, batch_size), self.labels, self.multi_label, threshold)

    @torch.inference_mode()
    def logits(self, sentences: Sequence[tuple[str, ...]], batch_size: int = 64) -> Tensor:
        """Logits of texts, or pairs of texts.

        Shape:
            rows -> (rows, K), float32, on the CPU.
        """
        output = torch.empty(len(sentences), self.model.config.num_labels)
        if not sentences:
            return output
        columns = [list(column) for column in zip(*sentences, strict=True)]
        batch = self.tokenizer(*columns, truncation="longest_first", max_length=self.max_length, verbose=False)
        rows = [dict(zip(batch, cells, strict=True)) for cells in zip(*batch.values(), strict=True)]
        order = np.argsort([-len(row["input_ids"]) for row in rows], kind="stable")
        for start in range(0, len(order), batch_size):
            places = order[start : start + batch_size]
            inputs = self._collate([rows[place] for place in places]).to(self.device)
            output[torch.from_numpy(places)] = self._forward(dict(inputs)).float().cpu()
        where = model_location(self.model.name_or_path)
        check_finite_logits(output, where, "its training has diverged, train with a lower --learning_rate")
        return output


def _forward(model: SoTForSequenceClassification, inputs: dict[str, Tensor]) -> Tensor:
    logits: Tensor = model(**inputs).logits
    return logits


def _onnx_session(path: str, num_labels: int) -> Forward:
    try:
        import onnxruntime
    except ImportError as error:
        raise UsageError("onnxruntime is not installed: --onnx; pip install onnxruntime") from error
    where = os.path.abspath(path)
    if not os.path.isfile(path):
        raise UsageError(f"no such file: {where}; write it with python -m sot_hf.export")
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = torch.get_num_threads()
    try:
        session = onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])
    except Exception as error:  # onnxruntime has a class for each kind of fault, all below Exception
        raise UsageError(f"onnxruntime cannot read it: {where}; write it with python -m sot_hf.export") from error
    names = {node.name for node in session.get_inputs()}
    shape: Any = session.get_outputs()[0].shape
    if "input_ids" not in names or shape[-1] != num_labels:
        raise UsageError(f"not an export of this model: {where}; write it with python -m sot_hf.export")

    def forward(inputs: dict[str, Tensor]) -> Tensor:
        feed = {name: inputs.get(name, torch.zeros_like(inputs["input_ids"])).numpy() for name in names}
        return torch.from_numpy(session.run(None, feed)[0])

    return forward
