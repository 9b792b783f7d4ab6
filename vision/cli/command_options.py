"""The command lines of this package, but for ``vision/train.py``'s; nothing here needs torch or timm."""

from __future__ import annotations

from argparse import ArgumentTypeError
from pathlib import Path

from sot_core.options import HEAD_OPTIONS, add_head_options
from sot_probe.options import add_probe_options
from sot_visual.names import DEFAULT_METHOD, METHODS
from vision.cli.config_file import Parser
from vision.cli.options import (
    add_checkpoint_options,
    add_device_options,
    add_dry_run,
    add_image_options,
    add_max_pixels,
    add_model_argument,
    add_source_options,
    add_threshold,
    non_negative_int,
    positive_int,
)

__all__ = [
    "LABEL_FORMATS",
    "MAX_COLUMNS",
    "OLDEST_OPSET",
    "check_parser",
    "data_parser",
    "export_parser",
    "label_parser",
    "predict_parser",
    "probe_parser",
    "summary_parser",
    "validate_parser",
    "visualize_parser",
]

LABEL_FORMATS = ("folder", "torch")
MAX_COLUMNS = 12  # of one picture
OLDEST_OPSET = 18  # torch's exporter writes no older one


def validate_parser() -> Parser:
    """The parser of ``vision/validate.py``."""
    parser = Parser(prog="validate.py", description="Validate an image classifier.")
    parser.add_argument("data_dir", nargs="?", metavar="DIR", help="folder or tar of images")
    add_model_argument(parser)
    parser.add_argument("--config", help="YAML or JSON file of options")
    add_dry_run(parser)
    add_checkpoint_options(parser)
    add_source_options(parser, labels=True)
    add_image_options(parser)
    add = parser.add_argument_group("validation").add_argument
    add("--imagenet-a", "--IN-A", "--IN_A", action="store_true", help="predict ImageNet-A's 200 classes alone")
    add("--real-labels", nargs="?", const="", help="also count ImageNet's reassessed labels; a JSON file of others")
    add_threshold(add)
    add("--per-class", help="CSV file: images, accuracy and main confusion of each class")
    add("--confusion", help="picture of which classes are confused (needs matplotlib)")
    add("--calibration", help="picture of how often predictions of a confidence are right (needs matplotlib)")
    add("--results", help="JSON file of the metrics")
    add_device_options(parser)
    return parser


def predict_parser() -> Parser:
    """The parser of ``vision/predict.py``."""
    parser = Parser(prog="predict.py", description="Predict the classes of images.")
    parser.add_argument("images", nargs="+", metavar="IMAGE", help="image files and folders")
    parser.add_argument("--model", help="the model, where the checkpoint does not say it")
    parser.add_argument("--config", help="YAML file of options")
    parser.add_argument("--topk", type=positive_int, default=5, help="classes to name for each image")
    add_threshold(parser.add_argument)
    parser.add_argument("--format", choices=("text", "json", "csv"), default="text", help="how to write")
    parser.add_argument("--output", help="file to write to; default: standard output")
    add_checkpoint_options(parser)
    add_image_options(parser)
    add_device_options(parser)
    parser.set_defaults(data_dir=None)
    return parser


def visualize_parser() -> Parser:
    """The parser of ``vision/visualize.py``."""
    parser = Parser(
        prog="visualize.py",
        description="Show which regions of an image a prediction depends on, in a figure or an HTML page.",
    )
    parser.add_argument("images", nargs="+", metavar="IMAGE", help="image files and folders")
    parser.add_argument("--model", help="the model, where the checkpoint does not say it")
    parser.add_argument("--config", help="YAML file of options")
    parser.add_argument("--method", choices=METHODS, default=DEFAULT_METHOD, help="attribution method")
    parser.add_argument("--class", dest="target", metavar="NAME", help="class to explain; default: the predicted one")
    parser.add_argument("--limit", type=positive_int, default=200, help="maximum number of images")
    parser.add_argument(
        "--output",
        nargs="+",
        metavar="FILE",
        default=["maps.png"],
        help=f".html, .png, .svg or .pdf; a picture has the first {MAX_COLUMNS} images",
    )
    parser.add_argument(
        "--check",
        action="store_true",
        help="evaluate the methods by deletion and insertion; --output receives the curves",
    )
    parser.add_argument(
        "--spectrum", metavar="FILE", help="only plot the singular values before and after the normalisation"
    )
    parser.add_argument(
        "--check-methods", nargs="+", choices=METHODS, help="methods to evaluate; default: all that the model supports"
    )
    add_checkpoint_options(parser)
    add_image_options(parser)
    add_device_options(parser)
    parser.set_defaults(data_dir=None, batch_size=16)
    return parser


def export_parser() -> Parser:
    """The parser of ``vision/export.py``."""
    parser = Parser(prog="export.py", description="Export a trained model to ONNX or torch.export.")
    add_model_argument(parser)
    parser.add_argument("--config", help="YAML file of options")
    parser.add_argument("--output", help="the file to write: NAME.onnx, or NAME.pt2 for torch.export")
    parser.add_argument("--opset", type=positive_int, default=OLDEST_OPSET, help="version of ONNX's operators")
    add_checkpoint_options(parser)
    add_image_options(parser)
    parser.set_defaults(data_dir=None)
    return parser


def probe_parser() -> Parser:
    """The parser of ``vision/probe.py``."""
    parser = Parser(
        prog="probe.py",
        description="Train heads on the stored token states of a frozen image model, and save the best as a model.",
    )
    parser.add_argument("data_dir", nargs="?", metavar="DIR", help="folder or tar of images")
    parser.add_argument("--model", required=True, help="efficientnet_lite0, or the name of a timm model")
    parser.add_argument("--pretrained", action="store_true", help="released weights of a timm model")
    parser.add_argument("--checkpoint", help="file with weights of the model, instead of --pretrained")
    parser.add_argument("--output-dir", required=True, type=Path, help="the folder for results.json and the model")
    add_source_options(parser, train=True, labels=True)
    parser.add_argument("--multi-label", action="store_true", help="multi-label data, with a metadata.csv")
    add = parser.add_argument_group("images").add_argument
    add("--img-size", type=positive_int, help="image height and width in pixels; default: the model's")
    add("--encode-batch", type=positive_int, default=32, help="images in a forward pass")
    add("-j", "--workers", type=non_negative_int, help="loading processes; default: one per core, up to 8")
    add_max_pixels(add)
    add_probe_options(parser)
    return parser


def _shard(text: str) -> tuple[int, int]:
    index, slash, count = text.partition("/")
    if not (slash and index.isdecimal() and count.isdecimal() and 1 <= int(index) <= int(count)):
        raise ArgumentTypeError(f"must be I/N with I from 1 to N, got {text!r}")
    return int(index), int(count)


def label_parser() -> Parser:
    """The parser of ``vision/generate_label.py``."""
    parser = Parser(prog="generate_label.py", description="Make the label maps of token labeling with any classifier.")
    parser.add_argument("data_dir", nargs="?", metavar="DIR", help="folder or tar of images")
    add_model_argument(parser)
    parser.add_argument("--config", help="YAML or JSON file of options")
    add = parser.add_argument_group("label maps").add_argument
    add("--output", help="where to put them: a folder that is not there yet")
    add("--top-k", type=positive_int, default=5, help="classes to keep of each place, at most all")
    add(
        "--format",
        choices=LABEL_FORMATS,
        default="folder",
        help="folder: with a header, two arrays for all images; torch: as published, one file an image",
    )
    add(
        "--scores",
        choices=("raw", "centred"),
        default="raw",
        help="raw: the model's, as published; centred: less the level of the classes that are left out, which training "
        "counts as 0: for models whose scores are mostly below 0, as binary cross-entropy makes them",
    )
    add("--shard", type=_shard, metavar="I/N", help="make the I-th of N shares of the parts alone")
    add("--part-size", type=positive_int, default=1000, help="images a part, which a kill can cost")
    add_checkpoint_options(parser)
    add_source_options(parser, train=True, val=False)
    add_image_options(parser)
    add_device_options(parser)
    return parser


def check_parser() -> Parser:
    """The parser of ``vision/check_label.py``."""
    parser = Parser(prog="check_label.py", description="Check label maps against the images that they are for.")
    parser.add_argument("maps", metavar="MAPS", help="the label maps: a folder, or a tar of the published files")
    parser.add_argument("data_dir", nargs="?", metavar="DIR", help="folder or tar of images")
    add_source_options(parser, train=True, val=False)
    parser.add_argument(
        "-j", "--workers", type=non_negative_int, help="reading processes; default: one a core, up to 8"
    )
    parser.set_defaults(config=None)
    return parser


def data_parser() -> Parser:
    """The parser of ``vision/check_data.py``."""
    parser = Parser(prog="check_data.py", description="Count the images of a data set, and list unreadable ones.")
    parser.add_argument("data_dir", metavar="DIR", help="folder or tar of images")
    parser.add_argument(
        "-j", "--workers", type=non_negative_int, help="reading processes; default: one a core, up to 8"
    )
    add_max_pixels(parser.add_argument)
    return parser


def summary_parser() -> Parser:
    """The parser of ``vision/summary.py``."""
    parser = Parser(prog="summary.py", description="Parameters, multiply-adds and activations of models.")
    parser.add_argument("model", nargs="?", help="a model that timm knows; default: a table of this package's models")
    parser.add_argument("--img-size", type=positive_int, help="height and width of the image in pixels")
    parser.add_argument("--num-classes", type=positive_int, help="outputs; default: the model's")
    parser.add_argument("--depth", type=int, default=2, help="how deep modules are listed; 0: the model alone")
    add_head_options(parser)
    parser.set_defaults(**{option.name: None for option in HEAD_OPTIONS})
    parser.set_defaults(drop=None, drop_path=None, model_kwargs={}, input_size=None)
    return parser
