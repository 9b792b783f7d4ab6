"""Kill a training at any moment in which it changes its folder, and compare what a restart makes of it."""

import importlib
import multiprocessing
import os
import re
import signal
import sys

import torch

from sot_base import torch_files
from tests.vision.conftest import assert_same_state

PROCESSES = multiprocessing.get_context("forkserver")
PROCESSES.set_forkserver_preload(
    ["vision.train", "vision.segment.train", "matplotlib.figure", "torch.utils.tensorboard", __name__]
)
EVENTS = {"open": 0, "os.rename": 1, "os.link": 1, "os.remove": 0, "os.chmod": 0, "os.utime": 0}  # argument: the path


class Moments:
    """Counts what a process does to the files of a folder, in order, and kills the process at one of these moments.

    Args:
        folder: The folder.
        kill_at: The moment, from 0, just before it is done; None: none.
    """

    def __init__(self, folder, kill_at=None):
        self.folder, self.kill_at, self.seen = os.path.abspath(folder), kill_at, []

    def install(self):
        """Start to watch; there is no way back, so that this is for processes of their own."""
        sys.addaudithook(self._audit)
        write, watch = torch_files._Stream.write, self

        def write_half(stream, data):
            if watch.killed_next(stream.file.name):
                write(stream, bytes(data)[: len(data) // 2])
                stream.file.flush()
            watch.note("write", stream.file.name)
            return write(stream, data)

        torch_files._Stream.write = write_half

    def _audit(self, event, arguments):
        if event in EVENTS:
            path = arguments[EVENTS[event]]
            reading = event == "open" and not (isinstance(arguments[1], str) and set(arguments[1]) & set("wax+"))
            if isinstance(path, str | bytes | os.PathLike) and not (reading and not _creates(arguments)):
                self.note(event, os.fsdecode(path))

    def killed_next(self, path):
        return self._inside(path) and len(self.seen) == self.kill_at

    def note(self, event, path):
        if not self._inside(path):
            return
        if len(self.seen) == self.kill_at:
            os.kill(os.getpid(), signal.SIGKILL)
        self.seen.append((event, final_name(path)))

    def _inside(self, path):
        return os.path.dirname(os.path.abspath(path)) == self.folder


def _creates(arguments):
    """Whether ``os.open`` may make a file."""
    return isinstance(arguments[2], int) and bool(arguments[2] & (os.O_CREAT | os.O_WRONLY | os.O_RDWR))


def final_name(path):
    """The name that a file is to have in the end."""
    name = os.path.basename(path)
    while match := re.fullmatch(r"\.(.*)\.[^.]{8}\.unfinished", name):
        name = match[1]
    name = re.sub(r"^events\.out\..*", "events", name)
    return re.sub(r"-\d+", "-N", name)


def in_a_process(module, words, folder, kill_at=None):
    """Run a command in a process of its own; gives the moments seen, or None if it was killed.

    The process is a fork of a clean one with all imports: one that has computed gradients cannot be forked.

    Args:
        module: The module with the command's ``main``.
        words: Its command line.
        folder: The folder of its run.
        kill_at: As of `Moments`.
    """
    reader, writer = PROCESSES.Pipe(duplex=False)
    process = PROCESSES.Process(target=_watched, args=(writer, module, words, os.getcwd(), str(folder), kill_at))
    process.start()
    writer.close()
    try:
        seen = reader.recv()
    except EOFError:
        seen = None
    process.join()
    assert process.exitcode == (0 if seen is not None else -signal.SIGKILL)
    return seen


def _watched(pipe, module, words, directory, folder, kill_at):
    os.chdir(directory)
    moments = Moments(folder, kill_at)
    moments.install()
    importlib.import_module(module).main(words)
    pipe.send(moments.seen)


def contents(folder):
    """What a run has left: the files, and what of them does not name the time."""
    names = sorted(final_name(name) for name in os.listdir(folder))
    assert names.count("events") <= 1
    checkpoints = {}
    for path in sorted(folder.glob("*.pth.tar")):
        saved = torch.load(path, weights_only=True)
        checkpoints[path.name] = {key: value for key, value in saved.items() if key not in ("options", "data_path")}
    return names, checkpoints, (folder / "summary.csv").read_text()


def assert_same_run(folder, expected):
    """A run has left what another one, given by its `contents`, has left, bit for bit."""
    names, checkpoints, log = contents(folder)
    assert names == expected[0]
    assert checkpoints.keys() == expected[1].keys()
    for name, content in checkpoints.items():
        assert_same_state(content, expected[1][name])
    assert log == expected[2]
