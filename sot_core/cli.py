"""What the command lines of the toolkit share: errors that a user can mend, outputs that are never half written."""

from __future__ import annotations

import contextlib
import errno
import os
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

__all__ = ["UsageError", "run_main", "atomic_file", "atomic_folder"]


class UsageError(ValueError):
    """A mistake in the input or the command line that the user can mend.

    The message has the form ``<what is wrong>: <where>; <what to do>``. Command lines print it without a traceback
    and exit with status 2 (:func:`run_main`).
    """


def run_main(main: Callable[[], int | None]) -> None:
    """Run ``main`` as a program: exit status 0, its own return value, or 2 with a one-line message on `UsageError`.

    A path that cannot be read or written is a mistake that the user can mend, too, and so is a full disk. Ctrl-C ends
    with status 130, as shells have it, and without a traceback.
    """
    try:
        status = main() or 0
        if sys.stdout is not None:
            sys.stdout.flush()  # what fails here would be a traceback at the end of the interpreter
        sys.exit(status)
    except UsageError as error:
        sys.stderr.write(f"error: {error}\n")
        sys.exit(2)
    except BrokenPipeError:  # the reader of a pipe (``| head``) has gone: not our error
        _drop_output()
        sys.exit(1)
    except KeyboardInterrupt:
        sys.stderr.write("interrupted\n")
        sys.exit(130)
    except OSError as error:
        if error.filename is None and error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
            sys.stderr.write(f"error: {error.strerror}: the output, or a temporary file; make room\n")
            _drop_output()
            sys.exit(2)
        if error.filename is None:
            raise
        where = os.path.abspath(os.fsdecode(error.filename))
        sys.stderr.write(f"error: {error.strerror}: {where}; check the path and who may write there\n")
        sys.exit(2)


def _drop_output() -> None:
    """Send what is still to be written to nowhere: the interpreter would try again and fail at its end."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


@contextlib.contextmanager
def atomic_file(path: str | os.PathLike[str]) -> Iterator[Path]:
    """Yield a temporary path beside ``path``; it becomes ``path`` when the block ends well and is removed when not.

    A device or a pipe (``/dev/stdout``, ``/dev/null``) is written as it is, for a file must not take its place.
    """
    target = Path(path)
    if target.is_dir():
        raise IsADirectoryError(errno.EISDIR, "a folder where a file is to be written", str(target))
    if target.exists() and not target.is_file():
        yield target
        return
    target.parent.mkdir(parents=True, exist_ok=True)
    handle, name = tempfile.mkstemp(prefix=f".{target.name}.", dir=target.parent)
    os.close(handle)
    temporary = Path(name)
    try:
        yield temporary
        umask = os.umask(0)
        os.umask(umask)
        temporary.chmod(0o666 & ~umask)  # mkstemp makes files private; outputs are ordinary files
        os.replace(temporary, target)
    finally:
        temporary.unlink(missing_ok=True)


@contextlib.contextmanager
def atomic_folder(path: str | os.PathLike[str]) -> Iterator[Path]:
    """Yield a temporary folder beside ``path``; it replaces ``path`` when the block ends well, else nothing changes."""
    target = Path(path)
    target.parent.mkdir(parents=True, exist_ok=True)
    temporary = Path(tempfile.mkdtemp(prefix=f".{target.name}.", dir=target.parent))
    try:
        yield temporary
        umask = os.umask(0)
        os.umask(umask)
        temporary.chmod(0o777 & ~umask)
        old = None
        if target.exists():
            old = Path(tempfile.mkdtemp(prefix=f".{target.name}.old.", dir=target.parent))
            os.replace(target, old)
        os.replace(temporary, target)
        if old is not None:
            shutil.rmtree(old)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)
