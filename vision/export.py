"""Export a classifier or a segmentation model of this package: to ONNX, or to a file of ``torch.export``.

python vision/export.py --checkpoint out/train/RUN/model_best.pth.tar --output model.onnx
python vision/export.py --checkpoint out/train/RUN/model_best.pth.tar --output model.pt2
python vision/export.py resnet18 --pretrained --output resnet18.onnx

The batch is dynamic. Input: ``images`` float32 (batch, channels, height, width), normalised as the printed JSON says;
output: ``logits`` (batch, classes), of a segmentation model (batch, classes, height, width). The file is checked
against the model on a batch of another size, an ONNX file by onnxruntime where that is installed.
"""

from __future__ import annotations

import json
import logging
import os
import sys
import warnings
from argparse import Namespace
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

if __package__ in (None, ""):  # run as a file: the import root is the repository, not this folder
    sys.path[0] = str(Path(__file__).resolve().parents[1])

from sot_base.command_help import show_help
from vision.cli.command_options import OLDEST_OPSET, export_parser

if __name__ == "__main__":  # before the imports that take seconds
    show_help(export_parser)

import torch
from torch import Tensor, nn

from sot_base.atomic import atomic_file
from sot_base.errors import UsageError, run_main
from vision.cli.config_file import parse_args
from vision.evaluation.load_trained import load_trained
from vision.models.weights.read import read_checkpoint
from vision.segment.load_trained import load_segmenter

__all__ = ["export_model", "main"]

_logger = logging.getLogger("vision.export")  # also when it is run as a file
TOLERANCE = 1e-4  # of the largest logit
ENDINGS = (".onnx", ".pt2")


def main(argv: Sequence[str] | None = None) -> None:
    """Export and print how the images are to be prepared, and the classes, as JSON."""
    args = parse_args(export_parser(), argv)
    logging.basicConfig(format="%(message)s")
    logging.getLogger("vision").setLevel(logging.INFO)
    if args.output is None or not args.output.endswith(ENDINGS):
        raise UsageError(f"no file to write: --output {args.output}; name a file that ends in .onnx or .pt2")
    model, facts = _load(args)
    export_model(model, args.output, facts["input_size"], args.opset)
    print(json.dumps({"file": args.output, **facts}))  # noqa: T201


def _load(args: Namespace) -> tuple[nn.Module, dict[str, Any]]:
    """The model, and what its images must be and its outputs mean."""
    if args.checkpoint is not None and "segmenter" in read_checkpoint(args.checkpoint, plain_values=True):
        trained = load_segmenter(args.checkpoint)
        size, images = (trained.window, trained.window), trained.images
        facts = {"input_size": [len(images["mean"]), *size], "mean": images["mean"], "std": images["std"]}
        return trained.model, {**facts, "class_names": trained.class_names, "values": "to be scaled to [0, 1] first"}
    args.amp, args.amp_dtype, args.channels_last = False, None, False
    classifier = load_trained(args, torch.device("cpu"))
    names = ("input_size", "mean", "std", "interpolation", "crop_pct", "crop_mode")
    facts = {name: classifier.data_config[name] for name in names}
    return classifier.model, {**facts, "class_names": classifier.class_names, "multi_label": classifier.multi_label}


def export_model(
    model: nn.Module, path: str | os.PathLike[str], input_size: Sequence[int], opset: int = OLDEST_OPSET
) -> Path:
    """Write a model as one file, for batches of any size.

    Args:
        model: From images (B, C, H, W) to logits; it is put into evaluation mode, on the CPU, in float32.
        path: The file, ``.onnx`` or ``.pt2``.
        input_size: Channels, height and width of the images.
        opset: Version of ONNX's operators (>= 18).

    Returns:
        The path.

    Raises:
        UsageError: if onnx and onnxscript are not installed, the model has parts that cannot be exported, or the file's
            logits differ from the model's.
    """
    path = Path(path)
    model = model.eval().cpu().float()
    images = torch.randn(2, *input_size, generator=torch.Generator().manual_seed(0))
    write = _write_onnx if path.suffix == ".onnx" else _write_program
    with atomic_file(path) as temporary, warnings.catch_warnings(), torch.no_grad():
        warnings.simplefilter("ignore")
        run = write(model, images, temporary, opset)
        if run is not None:
            _check(model, run, torch.randn(3, *input_size, generator=torch.Generator().manual_seed(1)))
    return path


def _write_program(model: nn.Module, images: Tensor, path: Path, opset: int) -> Callable[[Tensor], Tensor]:
    program = _trace(model, images)
    with path.open("wb") as file:
        torch.export.save(program, file)
    with path.open("rb") as file:
        return torch.export.load(file).module()


def _write_onnx(model: nn.Module, images: Tensor, path: Path, opset: int) -> Callable[[Tensor], Tensor] | None:
    try:
        import onnx
        import onnxscript  # noqa: F401
    except ImportError as error:
        raise UsageError(f"{error.name} is not installed: ONNX export; pip install onnx onnxscript") from error
    if opset < OLDEST_OPSET:
        raise UsageError(f"operators of version {opset}: ONNX export; give --opset {OLDEST_OPSET} or more")
    names: dict[str, Any] = {"input_names": ["images"], "output_names": ["logits"]}
    try:
        program = torch.onnx.export(_trace(model, images), (images,), opset_version=opset, verbose=False, **names)
    except torch.onnx.OnnxExporterError as error:
        raise UsageError(f"torch cannot write {type(model).__name__} as ONNX; try a newer torch, or .pt2") from error
    onnx.save_model(program.model_proto, os.fspath(path))
    return _onnx_session(path)


def _trace(model: nn.Module, images: Tensor) -> torch.export.ExportedProgram:
    shapes = ({0: torch.export.Dim("batch")},)
    try:
        return torch.export.export(model, (images,), dynamic_shapes=shapes)
    except Exception as error:  # torch.export raises errors of many kinds for what it cannot follow
        reason = " ".join(str(error).split())[:200]
        raise UsageError(f"torch cannot export {type(model).__name__}: {reason}; try a newer torch") from error


def _onnx_session(path: Path) -> Callable[[Tensor], Tensor] | None:
    try:
        import onnxruntime
    except ImportError:
        _logger.warning("onnxruntime is not installed: the file is not checked against the model")
        return None
    try:
        session = onnxruntime.InferenceSession(os.fspath(path), providers=["CPUExecutionProvider"])
    except Exception as error:  # onnxruntime has a class for each kind of fault, all below Exception
        raise UsageError("onnxruntime cannot run the file: ONNX export; try another --opset") from error
    return lambda images: torch.from_numpy(session.run(None, {"images": images.numpy()})[0])


def _check(model: nn.Module, run: Callable[[Tensor], Tensor], images: Tensor) -> None:
    """Compare the file with the model on a batch of another size."""
    expected = model(images)
    difference = (run(images) - expected).abs().max().item() / max(1.0, expected.abs().max().item())
    if not difference <= TOLERANCE:
        raise UsageError(f"the file's logits differ by {difference:.1e} from the model's: export; report this model")
    _logger.info(f"the file's logits differ by at most {difference:.1e} from the model's")


if __name__ == "__main__":
    run_main(main)
