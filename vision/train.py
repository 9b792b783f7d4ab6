"""Train an image classifier; without arguments, the digits demonstration.

python vision/train.py                                                            # digits, MGCrP against CLS
python vision/train.py DIR --model sot_micro --img-size 32 --epochs 5             # DIR/train/<class>, DIR/val/<class>
python vision/train.py DIR --config sot_tiny -b 128                               # vision/configs/sot_tiny.yaml
torchrun --nproc_per_node 8 vision/train.py DIR --config sot_small -b 128 --amp   # several GPUs
python vision/train.py DIR --config lvvit_s --token-label-data LABELS             # a label for every patch
python vision/train.py --config hvt-ti-1.json --data-set CIFAR --data-path DIR    # HVT's spellings
"""

from __future__ import annotations

import sys
from argparse import Namespace
from collections.abc import Sequence
from pathlib import Path

if __package__ in (None, ""):  # run as a file: the import root is the repository, not this folder
    sys.path[0] = str(Path(__file__).resolve().parents[1])

from sot_base.command_help import show_help
from vision.cli.train_options import train_parser

if __name__ == "__main__":  # before the imports that take seconds
    show_help(train_parser)

from timm.utils.distributed import is_distributed_env

from sot_base.errors import UsageError, run_main
from sot_visual.plots import draw_curves
from vision.cli.config_file import given_options, parse_args
from vision.cli.device import command_processes
from vision.cli.run_files import read_rows
from vision.cli.train_options import train_parser
from vision.models.weights.read import read_checkpoint
from vision.training.classification import ClassificationSession
from vision.training.demo import run_demo
from vision.training.find_run import find_resume, saved_recipe_name
from vision.training.multi_label import MultiLabelSession
from vision.training.run import Result, train
from vision.training.token_labeling import TokenLabelSession
from vision.validate import validate, validate_parser


@command_processes()
def main(argv: Sequence[str] | None = None) -> None:
    """Parse the command line and train."""
    argv = sys.argv[1:] if argv is None else argv
    args = parse_train_args(argv)
    if args.eval:
        _validate(args)
    elif args.data_dir is None and args.dataset is None:
        if is_distributed_env():
            raise UsageError("the demonstration runs in one process; give DIR or --dataset to torchrun")
        run_demo(argv, run)
    else:
        result = run(args)
        if result is not None:
            print(result.line("mAP" if args.multi_label else "top-1"))  # noqa: T201


def parse_train_args(argv: Sequence[str]) -> Namespace:
    """The options; without ``--recipe``, a run that is resumed keeps the recipe that it began with, or none."""
    args = parse_args(train_parser(), argv)
    if not args.resume or args.eval or "train_recipe" in given_options(train_parser(), argv):
        return args
    name = saved_recipe_name(args)
    return args if name in (None, args.train_recipe) else parse_args(train_parser(), [*argv, f"--recipe={name}"])


def _validate(args: Namespace) -> None:
    """Run ``vision/validate.py`` on the checkpoint of ``--resume``, which may be a published one."""
    files = find_resume(args)
    if not files:
        raise UsageError("--eval has no checkpoint; give it as --resume PATH")
    path = files[0]
    options = vars(parse_args(validate_parser(), []))
    shared = {name: value for name, value in vars(args).items() if name in options}
    model = None if "recipe" in read_checkpoint(path, plain_values=True) else args.model
    validate(Namespace(**{**options, **shared, "checkpoint": str(path), "model": model}))


def run(args: Namespace, name: str | None = None) -> Result | None:
    """Train as the options say.

    Args:
        args: The options.
        name: Name of the run's folder; None: from model and data.

    Returns:
        The result; None on every process but the first one, and for a dry run.
    """
    session = open_session(args)
    if args.dry_run:
        return session.dry_run()
    result = train(session, name)
    if result is not None:
        runs = {args.model: read_rows(result.summary)}
        draw_curves(runs, result.folder / "curves.png", session.column(), session.title)
    return result


def open_session(args: Namespace) -> ClassificationSession:
    """Open data and model of the kind of training that the options ask for."""
    if args.multi_label:
        return MultiLabelSession(args)
    return (TokenLabelSession if args.token_label else ClassificationSession)(args)


if __name__ == "__main__":
    run_main(main)
