"""The options of the commands of this package, but for `sot_hf.run_glue`; nothing here needs torch or transformers."""

from __future__ import annotations

import argparse

from sot_probe.options import add_probe_options
from sot_text import command_options as shared

__all__ = ["convert_parser", "export_parser", "predict_parser", "probe_parser", "visualize_parser"]


def predict_parser(description: str) -> argparse.ArgumentParser:
    """The parser of ``python -m sot_hf.predict``."""
    parser = shared.predict_parser("python -m sot_hf.predict", _first_line(description))
    _add_tokenizer_options(parser)
    parser.add_argument("--onnx", metavar="FILE", help="run this export of the model with ONNX Runtime")
    return parser


def visualize_parser(description: str) -> argparse.ArgumentParser:
    """The parser of ``python -m sot_hf.visualize``."""
    parser = shared.visualize_parser("python -m sot_hf.visualize", _first_line(description))
    _add_tokenizer_options(parser)
    return parser


def _add_tokenizer_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--tokenizer-name", help="folder or name of the tokenizer; default: beside the model")
    parser.add_argument(
        "--max-seq-length", type=int, help="maximum number of tokens of a text; longer texts are truncated"
    )


def probe_parser(description: str) -> argparse.ArgumentParser:
    """The parser of ``python -m sot_hf.probe``."""
    parser = argparse.ArgumentParser(prog="python -m sot_hf.probe", description=_first_line(description))
    shared.add_data_options(parser)
    add_probe_options(parser)
    return parser


def convert_parser(description: str) -> argparse.ArgumentParser:
    """The parser of ``python -m sot_hf.convert``."""
    parser = argparse.ArgumentParser(prog="python -m sot_hf.convert", description=_first_line(description))
    parser.add_argument("source", help="a fairseq --save-dir or checkpoint, or a folder saved by Hugging Face")
    parser.add_argument("--output_dir", "--output-dir", required=True, help="the folder to write")
    parser.add_argument("--head", help="name of the fairseq head, by default the one it was trained with")
    parser.add_argument("--data", help="the preprocessed fairseq data, if they are not where the checkpoint says")
    return parser


def export_parser(description: str) -> argparse.ArgumentParser:
    """The parser of ``python -m sot_hf.export``."""
    parser = argparse.ArgumentParser(prog="python -m sot_hf.export", description=_first_line(description))
    parser.add_argument("model", help="folder of a model saved with its head")
    parser.add_argument("--output", required=True, help="the file to write, for instance model.onnx")
    parser.add_argument("--opset", type=int, default=18, help="version of ONNX's operators")
    return parser


def _first_line(description: str) -> str:
    return description.split("\n")[0]
