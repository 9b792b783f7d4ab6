"""The options that the commands of both text sides share; nothing here needs torch."""

from __future__ import annotations

import argparse
from pathlib import Path

from sot_text.glue import GLUE_TASKS
from sot_visual.names import DEFAULT_METHOD, METHODS, PARTS

__all__ = ["PRECISIONS", "add_data_options", "add_device_options", "data_words", "predict_parser", "visualize_parser"]

PRECISIONS = ("float32", "bfloat16", "int8")
OPTIONS = ("task", "text_columns", "label_column", "labels", "max_length")
FLAGS = ("regression", "multi_label")


def predict_parser(prog: str, description: str) -> argparse.ArgumentParser:
    """The parser with the options that both commands share."""
    parser = argparse.ArgumentParser(prog=prog, description=description)
    parser.add_argument("checkpoint", help="the folder of a training, or a checkpoint in it")
    parser.add_argument("input", nargs="?", default="-", help="a TSV file; default: lines of standard input")
    parser.add_argument("--task", help=f"the GLUE task of the file ({', '.join(GLUE_TASKS)}); default: the model's")
    parser.add_argument("--text-columns", metavar="A[,B]", help="names of one or two columns, as in the file's line 1")
    parser.add_argument("--json", action="store_true", help="write one JSON object a line instead of a TSV file")
    parser.add_argument("--output", metavar="FILE", help="where to write; default: standard output")
    parser.add_argument("--submission", metavar="FILE_OR_DIR", help="write what GLUE's server takes of a test file")
    parser.add_argument(
        "--threshold", type=float, default=0.5, help="several labels a row: probability of a label (default: 0.5)"
    )
    parser.add_argument(
        "--precision",
        choices=PRECISIONS,
        default="float32",
        help="bfloat16 (autocast) or int8 (dynamic quantization, on a CPU) are faster (default: %(default)s)",
    )
    add_device_options(parser)
    return parser


def add_device_options(parser: argparse.ArgumentParser) -> None:
    """Add ``--batch-size`` and ``--device``."""
    parser.add_argument("--batch-size", type=int, default=64, help="rows computed at once (default: %(default)s)")
    parser.add_argument("--device", help="cpu, cuda, cuda:1... (default: a GPU if there is one)")


def visualize_parser(prog: str, description: str) -> argparse.ArgumentParser:
    """The parser with the options that both commands share."""
    parser = argparse.ArgumentParser(prog=prog, description=description)
    add = parser.add_argument
    add("checkpoint", help="the folder of a training, or a checkpoint in it")
    add("input", nargs="?", default="-", help="a TSV file; default: lines of standard input")
    add("--task", help=f"the GLUE task of the file ({', '.join(GLUE_TASKS)}); default: the model's")
    add("--text-columns", metavar="A[,B]", help="names of one or two columns, as in the file's line 1")
    add("--label-column", help="name of the column of labels, beside --text-columns")
    add("--limit", type=_positive, default=200, help="maximum number of rows of the file (default: %(default)s)")
    add("--method", choices=METHODS, default=DEFAULT_METHOD, help="how words are scored (default: %(default)s)")
    add("--class", dest="target", metavar="NAME", help="class to explain; default: the predicted one")
    add("--rows", nargs="+", choices=PARTS, help="parts of the logit to show; default: all of the model")
    add("--output", nargs="+", metavar="FILE", help=".html, .png, .svg or .pdf; default: colours in the terminal")
    add(
        "--check",
        action="store_true",
        help="evaluate the methods on the texts; --output receives the curves",
    )
    add("--check-methods", nargs="+", choices=METHODS, help="methods to evaluate; default: all that the model supports")
    add("--spectrum", metavar="FILE", help="only plot the singular values before and after the normalisation")
    add("--batch-size", type=_positive, default=16, help="rows computed at once (default: %(default)s)")
    add("--device", help="cpu, cuda, cuda:1... (default: a GPU if there is one)")
    return parser


def _positive(text: str) -> int:
    if not text.isascii() or not text.isdigit() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"must be an integer of at least 1, got {text!r}")
    return int(text)


def add_data_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of encoder, data and output."""
    parser.add_argument("--encoder", required=True, help="a name, or a path; see the documentation")
    parser.add_argument("--data-dir", required=True, help="the folder with train.tsv and dev.tsv, or GLUE's folder")
    parser.add_argument("--output-dir", required=True, type=Path, help="the folder for results.json and the model")
    data = parser.add_argument_group("what the files hold")
    data.add_argument("--task", help="a GLUE task")
    data.add_argument("--text-columns", metavar="A[,B]", help="own data: names of one or two columns")
    data.add_argument("--label-column", help="own data: name of the column with the label")
    data.add_argument("--labels", metavar="X,Y,...", help="own data: the labels in order; by default sorted")
    data.add_argument("--regression", action="store_true", help="own data: the label is a number")
    data.add_argument("--multi-label", action="store_true", help="own data: a cell lists labels, X,Y, or none")
    data.add_argument("--max-length", type=int, help="maximum number of tokens of a sample, special tokens included")


def data_words(args: argparse.Namespace) -> list[str]:
    """The data's options as command-line arguments, without encoder and output."""
    given = [(name, vars(args)[name]) for name in OPTIONS if vars(args)[name] is not None]
    words = [word for name, value in given for word in (_flag(name), str(value))]
    return ["--data-dir", args.data_dir, *words, *(_flag(name) for name in FLAGS if vars(args)[name])]


def _flag(name: str) -> str:
    return "--" + name.replace("_", "-")
