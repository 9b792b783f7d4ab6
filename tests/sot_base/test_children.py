"""Processes that end with the one that started them, whatever ends that."""

import os
import signal
import subprocess
import sys
import time

import pytest

from sot_base.children import Children
from tests.support import REPOSITORY

CHILD = """
import os, signal, sys, time
def end(number, frame):
    open(sys.argv[1] + ".ended", "w").write(str(number))
    sys.exit(7)
for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGINT):
    signal.signal(number, end)
open(sys.argv[1] + ".tmp", "w").write(str(os.getpid()))
os.rename(sys.argv[1] + ".tmp", sys.argv[1])
time.sleep(600)
"""
PARENT = f"""
import sys
from sot_base.children import Children
with Children() as children:
    children.wait(children.start([sys.executable, "-c", {CHILD!r}, sys.argv[1]]))
"""


@pytest.fixture
def parent(tmp_path):
    """A process that waits for a child, and the file that the child writes its number to."""
    environment = {**os.environ, "PYTHONPATH": str(REPOSITORY)}
    process = subprocess.Popen(
        [sys.executable, "-c", PARENT, str(tmp_path / "child")], env=environment, start_new_session=True
    )
    wait_until((tmp_path / "child").exists)
    yield process, tmp_path
    process.kill()
    process.wait()


def wait_until(condition):
    end = time.monotonic() + 120
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.02)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP, signal.SIGINT])
def test_a_signal_is_passed_on_and_is_the_status(parent, number):
    process, folder = parent
    process.send_signal(number)
    assert process.wait(timeout=120) == 128 + number
    assert (folder / "child.ended").read_text() == str(int(number))


@pytest.mark.skipif(sys.platform != "linux", reason="the system ends children on Linux alone")
def test_the_child_ends_when_its_parent_is_killed(parent):
    process, folder = parent
    process.kill()
    wait_until((folder / "child.ended").exists)
    wait_until(lambda: (folder / "child.ended").read_text() == str(int(signal.SIGTERM)))


def test_ctrl_c_of_a_terminal_reaches_the_child_once(parent):
    """The terminal sends it to the whole group; it is sent again only to a child that does not end."""
    process, folder = parent
    os.killpg(process.pid, signal.SIGINT)
    assert process.wait(timeout=120) == 130
    assert (folder / "child.ended").read_text() == str(int(signal.SIGINT))


def test_statuses_and_looks(tmp_path):
    looks = []
    with Children() as children:
        codes = ("raise SystemExit(3)", "import os; os.kill(os.getpid(), 9)", "")
        processes = [children.start([sys.executable, "-c", code]) for code in codes]
        assert children.wait(*processes, look=lambda: looks.append(1)) == [3, -9, 0]
    assert looks


def test_handlers_are_put_back_and_nothing_is_left_behind():
    before = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)}
    children = Children()
    with children:
        process = children.start([sys.executable, "-c", "import time; time.sleep(600)"])
    assert process.returncode == -signal.SIGTERM
    assert {number: signal.getsignal(number) for number in before} == before


def test_an_ignored_hangup_stays_ignored():
    """As under nohup."""
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with Children():
            assert signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGHUP, before)
