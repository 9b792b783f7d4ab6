"""What fairseq's command lines lack: mistakes in one line with status 2, signals, paths of the launch directory.

``fairseq-hydra-train`` alone goes to a new folder before it starts; this returns from there.
"""

from __future__ import annotations

import logging
import os
import signal
import sys
from traceback import walk_tb
from types import TracebackType
from typing import Any

from fairseq.distributed import utils as distributed_utils
from fairseq.options import parse_args_and_arch
from fairseq.utils import import_user_module
from hydra.core.hydra_config import HydraConfig
from hydra.utils import get_original_cwd
from omegaconf.errors import InterpolationKeyError
from torch import distributed as dist
from torch.multiprocessing import ProcessExitedException

from sot_base.allocator import keep_freed_memory
from sot_base.errors import UsageError, os_error_message, write_utf8
from sot_base.loading_processes import loading_process_message
from sot_fairseq.fairseq_patches.stop_signals import signals_for_children

__all__ = ["find_usage_error", "is_user_dir", "prepare_command_line"]

logger = logging.getLogger(__name__)


def is_user_dir(package_folder: str) -> bool:
    """Whether fairseq imports this package as ``--user-dir``."""
    return os.path.abspath(package_folder) in getattr(import_user_module, "memo", ())


def prepare_command_line() -> None:
    """Report mistakes, pass signals on, keep memory, and return to the launch directory."""
    write_utf8()
    keep_freed_memory()
    _report_usage_errors()
    _prepare_start()
    if HydraConfig.initialized():
        os.environ.setdefault("HYDRA_FULL_ERROR", "1")  # else hydra prints errors itself and ends with status 1
        os.chdir(get_original_cwd())


def _prepare_start() -> None:
    """Between reading the command line and starting the processes."""
    stock = distributed_utils.call_main
    if getattr(stock, "passes_signals_on", False):
        return

    def call_main(cfg: Any, main: Any, **kwargs: Any) -> None:
        if cfg.checkpoint.write_checkpoints_asynchronously:  # without iopath fairseq would end, with status 0
            logger.warning(
                "--write-checkpoints-asynchronously is ignored: only synchronous writing leaves intact checkpoints"
            )
            cfg.checkpoint.write_checkpoints_asynchronously = False
        with signals_for_children():
            stock(cfg, main, **kwargs)
        if dist.is_available() and dist.is_initialized():  # this process is one of several: fairseq has waited for all
            dist.destroy_process_group()  # its threads may abort a process that exits before

    call_main.passes_signals_on = True  # type: ignore[attr-defined]
    distributed_utils.call_main = call_main


def _report_usage_errors() -> None:
    """Print an uncaught mistake without its traceback, and exit as signals require."""
    hook = sys.excepthook

    def report(kind: type[BaseException], error: BaseException, traceback: TracebackType | None) -> None:
        if isinstance(error, KeyboardInterrupt):
            signal.signal(signal.SIGINT, signal.SIG_IGN)  # shells often send it twice, to the group and by a script
            sys.stdout.flush()
            sys.stderr.write("interrupted\n")
            raise SystemExit(130)
        if isinstance(error, ProcessExitedException) and error.exit_code > 128:  # a GPU's process, asked to stop
            raise SystemExit(error.exit_code)
        usage_error = find_usage_error(error)
        if usage_error is None:
            hook(kind, error, traceback)
            return
        sys.stdout.flush()
        sys.stderr.write(f"error: {usage_error}\n")
        raise SystemExit(2)

    sys.excepthook = report


def _raised_in(error: BaseException) -> str:
    """Name of the function that raised an exception."""
    frames = [frame for frame, _ in walk_tb(error.__traceback__)]
    return frames[-1].f_code.co_name if frames else ""


def find_usage_error(error: BaseException | None) -> UsageError | None:
    """The user's mistake behind an exception, if there is one.

    fairseq's trainer wraps what goes wrong while a checkpoint is loaded, so the causes are looked through. What fairseq
    itself says of a missing criterion, the system of a path, or torch of a loading process that was killed becomes a
    `UsageError`.
    """
    last, message = error, None if error is None else loading_process_message(error)
    while error is not None and not isinstance(error, UsageError):
        error = error.__cause__ or error.__context__
    if error is not None or last is None:
        return error
    if isinstance(last, InterpolationKeyError) and "'criterion." in str(last):
        return UsageError("this task needs another criterion: --criterion; give sentence_prediction_mgcrp")
    if isinstance(last, RuntimeError) and not last.args and _raised_in(last) == parse_args_and_arch.__name__:
        return UsageError("no architecture is named: the command line; give --arch, for instance --arch roberta_base")
    if isinstance(last, FileNotFoundError) and _raised_in(last) == import_user_module.__name__:
        return UsageError(f"no such folder: --user-dir {last}; give the folder of a plug-in")
    if message is None and isinstance(last, OSError):
        message = os_error_message(last)
    return None if message is None else UsageError(message)
