r"""``fairseq-train`` with this plug-in and a faster start.

    python -m sot_fairseq.train DATA --task sentence_prediction_mgcrp --criterion sentence_prediction_mgcrp ...

replaces ``fairseq-train DATA --user-dir sot_fairseq ...``: same options, bitwise the same results. The console script
imports fairseq, and with it scikit-learn, before it loads the plug-in. The scripts of ``glue_scripts`` and
``python -m sot_fairseq.sweep`` use this command.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from itertools import zip_longest

from fairseq.utils import import_user_module

from sot_base.quick_exit import exit_quickly, status_of
from sot_fairseq.fairseq_patches.usage_errors import prepare_command_line

__all__ = ["main"]

FOLDER = os.path.dirname(os.path.abspath(__file__))


def main(arguments: Sequence[str] | None = None) -> None:
    """Train with these arguments, by default those of the process."""
    from fairseq_cli.train import cli_main  # not at import: it sets up the root logger

    words = list(sys.argv[1:] if arguments is None else arguments)
    folder = _user_dir(words)
    if folder is None:
        folder = FOLDER
        words += ["--user-dir", folder]
    if os.path.isdir(folder) and os.path.samefile(folder, FOLDER):
        import_user_module.memo = {os.path.abspath(folder)}  # already imported
    prepare_command_line()
    sys.argv = ["fairseq-train", *words]
    cli_main()


def _user_dir(words: Sequence[str]) -> str | None:
    """The value of ``--user-dir`` among the arguments; None if it is not given."""
    found = None
    for word, following in zip_longest(words, words[1:]):
        if word == "--user-dir":
            found = following
        elif word.startswith("--user-dir="):
            found = word.partition("=")[2]
    return found


if __name__ == "__main__":
    status = status_of(main)
    exit_quickly(status)
    sys.exit(status)
