"""Train UperNet on a vision transformer for semantic segmentation.

python vision/segment/train.py DIR --model lvvit_s --backbone-checkpoint lvvit_s-26M-384-84.4.pth.tar --amp
python vision/segment/train.py DIR --num-classes 4 --no-reduce-zero-label --crop-size 256 --steps 20000
torchrun --nproc_per_node 8 vision/segment/train.py DIR --model lvvit_m -b 2 --amp        # several GPUs
"""

from __future__ import annotations

import sys
from argparse import Namespace
from collections.abc import Sequence
from pathlib import Path

if __package__ in (None, ""):  # run as a file: the import root is the repository, not this folder
    sys.path[0] = str(Path(__file__).resolve().parents[2])

from sot_base.command_help import show_help
from vision.segment.options import train_parser

if __name__ == "__main__":  # before the imports that take seconds
    show_help(train_parser)

from sot_base.errors import run_main
from vision.cli.config_file import parse_args
from vision.cli.device import command_processes
from vision.segment.options import train_parser
from vision.segment.session import SegmentSession
from vision.training.run import Result, train


@command_processes()
def main(argv: Sequence[str] | None = None) -> None:
    """Parse the command line and train."""
    result = run(parse_args(train_parser(), argv))
    if result is not None:
        print(result.line("mIoU"))  # noqa: T201


def run(args: Namespace) -> Result | None:
    """Train as the options say.

    Returns:
        The result; None for a dry run and on every process but the first.
    """
    session = SegmentSession(args)
    return session.dry_run() if args.dry_run else train(session)


if __name__ == "__main__":
    run_main(main)
