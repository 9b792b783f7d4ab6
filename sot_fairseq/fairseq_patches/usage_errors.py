"""What fairseq's own command lines owe a user: a mistake is one line and status 2, paths are relative to the start.

``fairseq-hydra-train`` alone goes to a new folder before it starts; this returns from there.
"""

from __future__ import annotations

import os
import sys
from types import TracebackType

from fairseq.utils import import_user_module
from hydra.core.hydra_config import HydraConfig
from hydra.utils import get_original_cwd
from omegaconf.errors import InterpolationKeyError

from sot_base.errors import UsageError

__all__ = ["find_usage_error", "prepare_command_line"]


def prepare_command_line(package_folder: str) -> None:
    """If fairseq imported this package as ``--user-dir``, report mistakes and return to the folder of the start."""
    if os.path.abspath(package_folder) not in getattr(import_user_module, "memo", ()):
        return
    _report_usage_errors()
    if HydraConfig.initialized():
        os.environ.setdefault("HYDRA_FULL_ERROR", "1")  # else hydra prints errors itself and ends with status 1
        os.chdir(get_original_cwd())


def _report_usage_errors() -> None:
    """Print an uncaught mistake without its traceback."""
    hook = sys.excepthook

    def report(kind: type[BaseException], error: BaseException, traceback: TracebackType | None) -> None:
        usage_error = find_usage_error(error)
        if usage_error is None:
            hook(kind, error, traceback)
            return
        sys.stdout.flush()
        sys.stderr.write(f"error: {usage_error}\n")
        raise SystemExit(2)

    sys.excepthook = report


def find_usage_error(error: BaseException | None) -> UsageError | None:
    """The user's mistake that an exception is due to, if there is one.

    fairseq's trainer wraps what goes wrong while a checkpoint is loaded, so the causes are looked through. What fairseq
    itself says of a missing criterion, or the system of a path, becomes a `UsageError`.
    """
    last = error
    while error is not None and not isinstance(error, UsageError):
        error = error.__cause__ or error.__context__
    if error is not None or last is None:
        return error
    if isinstance(last, InterpolationKeyError) and "'criterion." in str(last):
        return UsageError("this task needs a criterion of its kind: --criterion; give sentence_prediction_mgcrp")
    if isinstance(last, OSError) and last.filename:
        return UsageError(f"{last.strerror}: {os.path.abspath(last.filename)}; check the path and who may write there")
    return None
