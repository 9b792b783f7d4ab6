"""Errors that a user can mend, under fairseq's own command lines: one line and exit status 2, no traceback."""

from __future__ import annotations

import os
import sys
from types import TracebackType

from fairseq.utils import import_user_module

from sot_core.cli import UsageError

__all__ = ["find_usage_error", "report_usage_errors"]


def report_usage_errors(package_folder: str) -> None:
    """Print an uncaught `UsageError` without its traceback if fairseq imported this package as ``--user-dir``.

    fairseq's trainer wraps what goes wrong while a checkpoint is loaded; the cause is looked for.
    """
    if os.path.abspath(package_folder) not in getattr(import_user_module, "memo", ()):
        return
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
    """The `UsageError` among an exception and its causes."""
    while error is not None and not isinstance(error, UsageError):
        error = error.__cause__ or error.__context__
    return error
