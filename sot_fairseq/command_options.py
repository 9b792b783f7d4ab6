"""The options of the commands of this package; nothing here needs torch or fairseq."""

from __future__ import annotations

import argparse
from pathlib import Path

from sot_probe.options import add_probe_options
from sot_text import command_options as shared
from sot_text.glue import GLUE_TASKS

__all__ = [
    "convert_parser",
    "encoders_parser",
    "evaluate_parser",
    "predict_parser",
    "preprocess_parser",
    "probe_parser",
    "sweep_parser",
    "visualize_parser",
]

ARCHS = ("sot_bert_base", "sot_bert_large", "spanbert_base", "spanbert_large")
SUBWORDS = ("gpt2", "sentencepiece", "wordpiece")


def predict_parser(description: str) -> argparse.ArgumentParser:
    """The parser of ``python -m sot_fairseq.predict``."""
    parser = shared.predict_parser("python -m sot_fairseq.predict", _first_line(description))
    _add_checkpoint_options(parser)
    return parser


def visualize_parser(description: str) -> argparse.ArgumentParser:
    """The parser of ``python -m sot_fairseq.visualize``."""
    parser = shared.visualize_parser("python -m sot_fairseq.visualize", _first_line(description))
    _add_checkpoint_options(parser)
    return parser


def _add_checkpoint_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--head", help="name of the classification head; default: the one trained")
    parser.add_argument("--data", help="folder with the dictionaries; default: beside the checkpoint, or its data")


def probe_parser(description: str) -> argparse.ArgumentParser:
    """The parser of ``python -m sot_fairseq.probe``."""
    parser = argparse.ArgumentParser(prog="python -m sot_fairseq.probe", description=_first_line(description))
    shared.add_data_options(parser)
    add_probe_options(parser)
    return parser


def preprocess_parser(description: str) -> argparse.ArgumentParser:
    """The parser of ``python -m sot_fairseq.preprocess``."""
    parser = argparse.ArgumentParser(prog="python -m sot_fairseq.preprocess", description=_first_line(description))
    parser.add_argument("--data-dir", required=True, help="the folder with train.tsv, dev.tsv..., or GLUE's folder")
    parser.add_argument("--output-dir", required=True, help="the folder to write")
    data = parser.add_argument_group("what the files hold")
    data.add_argument("--task", help=f"a GLUE task: {', '.join(GLUE_TASKS)}")
    data.add_argument("--text-columns", metavar="A[,B]", help="own data: names of one or two columns, as in line 1")
    data.add_argument("--label-column", help="own data: name of the column with the label")
    data.add_argument(
        "--labels",
        metavar="X,Y,...",
        help='own data: the labels in order; by default sorted; a comma in a name: "X, Y"',
    )
    data.add_argument("--regression", action="store_true", help="own data: the label is a number")
    data.add_argument("--multi-label", action="store_true", help="own data: a cell lists labels, X,Y, or none")
    text = parser.add_argument_group("how text becomes tokens")
    text.add_argument(
        "--bpe", required=True, choices=SUBWORDS, help="RoBERTa has gpt2, XLM-R sentencepiece, BERT wordpiece"
    )
    text.add_argument("--gpt2-bpe-dir", help="the folder with encoder.json, vocab.bpe and dict.txt")
    text.add_argument(
        "--sentencepiece-model", help="sentencepiece.bpe.model with dict.txt beside it, or the folder they lie in"
    )
    text.add_argument("--vocab", help="BERT's vocab.txt, or the folder it lies in")
    casing = text.add_mutually_exclusive_group()
    casing.add_argument("--cased", dest="lower_case", action="store_false", help="insist on a cased vocabulary")
    casing.add_argument("--uncased", dest="lower_case", action="store_true", help="insist on a lower-cased one")
    casing.add_argument(
        "--force-lower-case",
        action="store_true",
        help="lower-case text even if the vocabulary is cased, as --do_lower_case of BERT's scripts does",
    )
    parser.set_defaults(lower_case=None)
    text.add_argument(
        "--moses-detokenize", action="store_true", help="turn tokenized English text into plain text first"
    )
    text.add_argument("--max-length", type=int, help="shorten samples to so many positions, special tokens included")
    return parser


def convert_parser(description: str) -> argparse.ArgumentParser:
    """The parser of ``python -m sot_fairseq.convert``."""
    parser = argparse.ArgumentParser(prog="python -m sot_fairseq.convert", description=_first_line(description))
    parser.add_argument("source", help="a Hugging Face BERT folder, or the file of weights in it")
    parser.add_argument("--output-dir", required=True, help="the folder to write")
    parser.add_argument("--vocab", help="vocab.txt, if it is not in the folder")
    casing = parser.add_mutually_exclusive_group()
    casing.add_argument("--cased", action="store_false", dest="lower_case", default=None, help="keep upper case")
    casing.add_argument("--uncased", action="store_true", dest="lower_case", default=None, help="lower-case all text")
    parser.add_argument("--arch", choices=ARCHS, help="the architecture to name in the checkpoint")
    return parser


def encoders_parser(description: str) -> argparse.ArgumentParser:
    """The parser of ``python -m sot_fairseq.encoders``."""
    parser = argparse.ArgumentParser(prog="python -m sot_fairseq.encoders", description=_first_line(description))
    parser.add_argument("encoder", help="a name, a path, or scratch:<layers>x<dim>")
    parser.add_argument("--output-dir", help="where conversions go (default: <cache>/converted)")
    parser.add_argument("--format", choices=("json", "lines"), default="json", help="lines: field<TAB>value")
    return parser


def evaluate_parser(description: str) -> argparse.ArgumentParser:
    """The parser of ``python -m sot_fairseq.evaluate``."""
    parser = argparse.ArgumentParser(prog="python -m sot_fairseq.evaluate", description=_first_line(description))
    parser.add_argument("checkpoint", help="the --save-dir of a training, or a checkpoint file")
    parser.add_argument("--data", help="folder of preprocessed data (default: the training data)")
    parser.add_argument(
        "--split", nargs="+", help="splits, as valid, or their files, as dev_matched (default: all dev)"
    )
    parser.add_argument("--metrics", nargs="+", help="names of metrics (default: those of the task)")
    parser.add_argument("--json", action="store_true", help="print JSON")
    shared.add_device_options(parser)
    parser.add_argument("--head", help="name of the classification head; default: the one trained")
    return parser


def sweep_parser(description: str) -> argparse.ArgumentParser:
    """The parser of ``python -m sot_fairseq.sweep``."""
    parser = argparse.ArgumentParser(
        prog="python -m sot_fairseq.sweep",
        description=_first_line(description),
        usage="%(prog)s SWEEP_DIR [options] [-- fairseq-train arguments]",
    )
    parser.add_argument("sweep_dir", type=Path, help="the folder for everything that is written")
    parser.add_argument("--command", metavar="FILE", help="a file with the fairseq-train command, like command.txt")
    parser.add_argument(
        "--param",
        action="append",
        required=True,
        metavar="NAME=VALUES",
        help="an option and its values; may be repeated",
    )
    parser.add_argument("--trials", type=int, default=20, help="settings to try (default: 20)")
    parser.add_argument("--seeds", type=int, nargs="+", default=[1, 2, 3], help="a training each (default: 1 2 3)")
    parser.add_argument("--sampler", choices=("tpe", "random", "grid"), default="tpe", help="how values are chosen")
    parser.add_argument("--sampler-seed", type=int, default=0, help="random seed of the choice (default: 0)")
    parser.add_argument("--keep-checkpoints", action="store_true", help="leave the checkpoints of finished runs")
    return parser


def _first_line(description: str) -> str:
    return description.split("\n")[0]
