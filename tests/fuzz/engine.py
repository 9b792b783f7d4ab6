"""Give damaged inputs to a reader and note what is no plain refusal: a traceback, too much time or memory."""

from __future__ import annotations

import contextlib
import io
import os
import random
import resource
import shutil
import signal
import time
import traceback
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from sot_base.errors import UsageError

SECONDS = 10  # of processor time for one input
STUCK = 120  # seconds of waiting, for one input that computes nothing
MEMORY = 2 * 2**30  # bytes above what the process has at the start
LONGEST = 2000  # characters of a message


@dataclass(frozen=True)
class Reader:
    """Something that reads files.

    Attributes:
        name: Its name.
        make: Writes a good input into a folder and returns the files that are damaged, one at a time.
        read: Reads the folder.
        damage: Damages the bytes of a file.
        errors: What it may raise besides `UsageError` and an `OSError` that names its file.
    """

    name: str
    make: Callable[[Path], list[Path]]
    read: Callable[[Path], object]
    damage: Callable[[bytes, random.Random], bytes]
    errors: tuple[type[Exception], ...] = ()


@dataclass
class Report:
    """What came of the inputs of a reader."""

    name: str
    inputs: int = 0
    taken: int = 0
    refused: int = 0
    seconds: float = 0.0
    findings: list[str] = field(default_factory=list)

    def line(self) -> str:
        """The counts as a row of a table."""
        counts = (self.inputs, self.taken, self.refused, len(self.findings), round(self.seconds))
        return f"| {self.name} | {' | '.join(map(str, counts))} |"


class TooSlowError(BaseException):
    """An input took too long; no ``except Exception`` holds it back."""


def run(reader: Reader, folder: Path, inputs: int, seed: int, keep: Path | None = None) -> Report:
    """Damage a good input in `inputs` ways and read each.

    Args:
        reader: The reader.
        folder: A folder to work in.
        inputs: How many.
        seed: Of the damages.
        keep: Where inputs that show a finding are kept.
    """
    report = Report(reader.name)
    good = folder / "good"
    good.mkdir(parents=True)
    files = reader.make(good)
    reader.read(good)  # it is good
    contents = {path: path.read_bytes() for path in files}
    start = time.monotonic()
    for number in range(inputs):
        rng = random.Random(f"{seed} {reader.name} {number}")
        path = rng.choice(files)
        path.write_bytes(reader.damage(contents[path], rng))
        problem = _problem(reader, good, report)
        report.inputs += 1
        if problem:
            report.findings.append(f"input {number}, {path.name}: {problem}")
            if keep is not None:
                keep.mkdir(parents=True, exist_ok=True)
                shutil.copy(path, keep / f"{reader.name.replace(' ', '-').replace('/', '-')}-{number}-{path.name}")
        path.write_bytes(contents[path])
    report.seconds = time.monotonic() - start
    return report


def _problem(reader: Reader, folder: Path, report: Report) -> str | None:
    try:
        with _limited(), _silent():
            reader.read(folder)
    except UsageError as error:
        report.refused += 1
        text = str(error)
        return f"a message of {len(text)} characters" if len(text) > LONGEST or "\n" in text else None
    except reader.errors:
        report.refused += 1
    except OSError as error:
        if error.filename is None:
            return _last_line(error)
        report.refused += 1
    except TooSlowError as error:
        return str(error)
    except MemoryError:
        return f"more than {MEMORY / 2**30:.0f} GiB"
    except Exception as error:
        return _last_line(error)
    else:
        report.taken += 1
    return None


def _last_line(error: BaseException) -> str:
    frames = traceback.extract_tb(error.__traceback__)
    ours = [frame for frame in frames if "/site-packages/" not in frame.filename and "/fuzz/" not in frame.filename]
    place = ours[-1] if ours else frames[-1]
    last = frames[-1]
    where = f"{Path(place.filename).name}:{place.lineno}, {Path(last.filename).name}:{last.lineno}"
    return f"{type(error).__name__}: {' '.join(str(error).split())[:150]} ({where})"


@contextlib.contextmanager
def _silent() -> Iterator[None]:
    with (
        warnings.catch_warnings(),
        contextlib.redirect_stdout(io.StringIO()),
        contextlib.redirect_stderr(io.StringIO()),
    ):
        warnings.simplefilter("ignore")
        yield


@contextlib.contextmanager
def _limited() -> Iterator[None]:
    """Bound processor time, waiting and memory."""

    def too_slow(number: int, frame: Any) -> None:
        raise TooSlowError(f"over {SECONDS} s" if number == signal.SIGPROF else f"stuck for {STUCK} s")

    old = {number: signal.signal(number, too_slow) for number in (signal.SIGPROF, signal.SIGALRM)}
    size = int(Path("/proc/self/statm").read_text().split()[0]) * os.sysconf("SC_PAGESIZE")
    limits = resource.getrlimit(resource.RLIMIT_AS)
    signal.setitimer(signal.ITIMER_PROF, SECONDS)
    signal.setitimer(signal.ITIMER_REAL, STUCK)
    resource.setrlimit(resource.RLIMIT_AS, (size + MEMORY, limits[1]))
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.setitimer(signal.ITIMER_REAL, 0)
        resource.setrlimit(resource.RLIMIT_AS, limits)
        for number, handler in old.items():
            signal.signal(number, handler)
