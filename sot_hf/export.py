"""Export encoder and head to ONNX: ``python -m sot_hf.export MODEL_DIR --output model.onnx``.

Batch size and length are dynamic, and the attention mask is respected. Inputs: ``input_ids``, ``attention_mask`` and,
for backbones with two token types, ``token_type_ids``, all int64 (batch, length); output: ``logits`` (batch, classes).
The graph is checked against the model by onnxruntime where that is installed.
"""

from __future__ import annotations

import logging
import os
import warnings
from pathlib import Path

from sot_base.command_help import show_help
from sot_hf.command_options import export_parser

if __name__ == "__main__":  # before the imports that take seconds
    show_help(lambda: export_parser(__doc__))

import torch
from torch import Tensor, nn
from transformers.utils import logging as hf_logging

from sot_base.atomic import atomic_file
from sot_base.errors import UsageError, run_main
from sot_hf.load_model import load_trained
from sot_hf.modeling import SoTForSequenceClassification

__all__ = ["example_inputs", "export_onnx", "main"]

logger = logging.getLogger(__name__)

TOLERANCE = 1e-4
OLDEST_OPSET = 18  # torch's exporter writes no older one


class _LogitsOf(nn.Module):
    """The model as a function of positional tensors."""

    def __init__(self, model: SoTForSequenceClassification, names: tuple[str, ...]) -> None:
        super().__init__()
        self.model, self.names = model, names

    def forward(self, *tensors: Tensor) -> Tensor:
        logits: Tensor = self.model(**dict(zip(self.names, tensors, strict=True))).logits
        return logits


def example_inputs(model: SoTForSequenceClassification, rows: int = 2, length: int = 7) -> dict[str, Tensor]:
    """Inputs of the exported graph: random tokens, the last row padded.

    Args:
        model: The model.
        rows: Batch size (> 0).
        length: Tokens of each row (> 2).
    """
    config = model.config.get_text_config()
    ids = torch.randint(0, config.vocab_size, (rows, length), generator=torch.Generator().manual_seed(0))
    mask = torch.ones_like(ids)
    mask[-1, length - 2 :] = 0
    padding = getattr(config, "pad_token_id", None)
    if padding is not None:
        ids = ids.where(ids != padding, (padding + 1) % config.vocab_size).masked_fill(mask.eq(0), padding)
    inputs = {"input_ids": ids, "attention_mask": mask}
    if "token_type_ids" in model.inputs and getattr(config, "type_vocab_size", 0) > 1:
        inputs["token_type_ids"] = (torch.arange(length) > length // 2).long().expand(rows, -1).contiguous()
    return inputs


def export_onnx(model: SoTForSequenceClassification, path: str | os.PathLike[str], opset: int = 18) -> Path:
    """Write the model as one ONNX file.

    Args:
        model: The model; it is put into evaluation mode.
        path: The file to write.
        opset: Version of ONNX's operators (>= 18).

    Returns:
        The path.

    Raises:
        UsageError: if onnx and onnxscript are not installed, the model has parts that ONNX has not, or the graph's
            logits differ from the model's.
    """
    try:
        import onnx
        import onnxscript  # noqa: F401
    except ImportError as error:
        raise UsageError(f"{error.name} is not installed: ONNX export; pip install onnx onnxscript") from error
    if opset < OLDEST_OPSET:
        raise UsageError(f"operators of version {opset}: ONNX export; give --opset {OLDEST_OPSET} or more")
    path = Path(path)
    model = model.eval().cpu().float()
    inputs = example_inputs(model)
    batch, length = torch.export.Dim("batch"), torch.export.Dim("length")
    try:
        with warnings.catch_warnings(), torch.no_grad():
            warnings.simplefilter("ignore")
            program = torch.onnx.export(
                _LogitsOf(model, tuple(inputs)),
                tuple(inputs.values()),
                input_names=list(inputs),
                output_names=["logits"],
                dynamic_shapes=(tuple({0: batch, 1: length} for _ in inputs),),
                opset_version=opset,
                dynamo=True,
                verbose=False,
            )
    except torch.onnx.OnnxExporterError as error:
        parts = f"{model.config.backbone.model_type} and the head ({model.config.head['normalization']})"
        raise UsageError(f"torch cannot write {parts}: ONNX export; try a newer torch, or another head") from error
    with atomic_file(path) as temporary:
        onnx.save_model(program.model_proto, temporary)
        _check(model, temporary)
    return path


def _check(model: SoTForSequenceClassification, path: Path) -> None:
    """Compare the graph with the model on a batch of another shape."""
    try:
        import onnxruntime
    except ImportError:
        logger.warning("onnxruntime is not installed: the graph is not checked against the model")
        return
    try:
        session = onnxruntime.InferenceSession(os.fspath(path), providers=["CPUExecutionProvider"])
    except Exception as error:  # onnxruntime has a class for each kind of fault, all below Exception
        raise UsageError("onnxruntime cannot run the graph: ONNX export; try another --opset") from error
    inputs = example_inputs(model, rows=3, length=11)
    found = torch.from_numpy(session.run(None, {name: tensor.numpy() for name, tensor in inputs.items()})[0])
    with torch.no_grad():
        expected = model(**inputs).logits
    difference = (found - expected).abs().max().item()
    if not difference <= TOLERANCE:
        raise UsageError(
            f"the graph's logits differ by {difference:.1e} from the model's: ONNX export; try another opset"
        )
    logger.info("onnxruntime's logits differ by at most %.1e from the model's", difference)


def main(arguments: list[str] | None = None) -> None:
    """Export from the command line and print the file's path."""
    args = export_parser(__doc__).parse_args(arguments)
    logging.basicConfig(level=logging.INFO, format="%(message)s")
    hf_logging.set_verbosity_warning()
    print(export_onnx(load_trained(args.model), args.output, args.opset))  # noqa: T201


if __name__ == "__main__":
    run_main(main)
