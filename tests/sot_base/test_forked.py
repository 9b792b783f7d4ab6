"""Forks that end as programs do."""

import atexit
import os
import signal
import sys
import time

import pytest

from sot_base.children import Children
from sot_base.forked import ForkedProcess


@pytest.fixture
def run(tmp_path):
    """Runs a function in a fork; gives its status and what it wrote."""

    def run(function):
        with (tmp_path / "output").open("wb") as stream:
            status = ForkedProcess(function, stream).wait()
        return status, (tmp_path / "output").read_text()

    return run


def write_and_leave():
    sys.__stdout__.write("to the end; ")
    atexit.register(lambda: os.write(1, b"registered; "))


@pytest.mark.parametrize("code, status, text", [(None, 0, ""), (0, 0, ""), (3, 3, ""), ("sorry", 1, "sorry\n")])
def test_the_status_of_an_exit(run, code, status, text, monkeypatch):
    monkeypatch.setattr(sys, "stderr", sys.__stderr__)
    assert run(lambda: sys.exit(code)) == (status, text)


def test_an_error_leaves_a_traceback_and_status_1(run, monkeypatch):
    monkeypatch.setattr(sys, "stderr", sys.__stderr__)
    status, text = run(lambda: [][1])
    assert (status, text.splitlines()[-1]) == (1, "IndexError: list index out of range")


def test_a_hook_may_give_a_mistake_its_status(run, monkeypatch):
    def hook(*error):
        raise SystemExit(2)

    monkeypatch.setattr(sys, "excepthook", hook)
    assert run(lambda: [][1]) == (2, "")


def test_output_and_exit_functions_are_finished(run, monkeypatch):
    monkeypatch.setattr(sys, "stdout", sys.__stdout__)
    status, text = run(write_and_leave)
    assert (status, sorted(text.split("; "))) == (0, ["", "registered", "to the end"])


def test_what_is_buffered_is_written_once(tmp_path, monkeypatch):
    with (tmp_path / "buffered").open("w") as stream:
        monkeypatch.setattr(sys, "stdout", stream)
        stream.write("once\n")
        assert ForkedProcess(lambda: stream.write("child\n")).wait() == 0
    assert (tmp_path / "buffered").read_text() == "once\nchild\n"


def test_a_signal_is_a_negative_status():
    process = ForkedProcess(lambda: time.sleep(600))
    assert process.poll() is None
    process.send_signal(signal.SIGKILL)
    assert process.wait() == process.poll() == -signal.SIGKILL
    process.send_signal(signal.SIGKILL)  # has ended: nothing happens


def test_children_pass_signals_on_to_forks():
    """The fork starts with the handlers from before, not with those that pass signals on."""

    def send_to_the_parent():
        os.kill(os.getppid(), signal.SIGTERM)
        time.sleep(600)

    before = signal.signal(signal.SIGTERM, signal.SIG_DFL)  # trainings in this process may have left a handler
    try:
        with Children() as children:
            process = children.fork(send_to_the_parent)
            with pytest.raises(SystemExit) as end:
                children.wait(process)
    finally:
        signal.signal(signal.SIGTERM, before)
    assert (end.value.code, process.returncode) == (128 + signal.SIGTERM, -signal.SIGTERM)
