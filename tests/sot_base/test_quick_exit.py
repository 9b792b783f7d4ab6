"""Commands end without the teardown of libraries, and lose nothing by it."""

import os
import subprocess
import sys
import textwrap

import pytest

from tests.support import REPOSITORY

START = """
import atexit, ctypes, sys, threading, time
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace
from sot_base import errors, quick_exit
from sot_base.errors import UsageError, run_main

class Kept:
    def __del__(self):
        sys.__stderr__.write("torn down; ")

kept = Kept()
quick_exit.is_command = lambda: True
"""
QUICK, WHOLE = "", "torn down; "


def run(code):
    words = [sys.executable, "-c", START + textwrap.dedent(code)]
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONUNBUFFERED"}
    done = subprocess.run(words, capture_output=True, text=True, cwd=REPOSITORY, env=environment, timeout=60)
    return done.returncode, done.stdout, done.stderr


def test_threads_exit_functions_and_buffers_come_to_their_end():
    found = run("""
        def main():
            pool = ThreadPoolExecutor(1)  # its idle thread ends when Python says so
            pool.submit(print, "pool", flush=True).result()
            atexit.register(lambda: sys.stdout.write("atexit; "))
            threading.Thread(target=lambda: (time.sleep(0.3), sys.stdout.write("thread; "))).start()
            ctypes.CDLL(None).printf(b"libc; ")

        run_main(main)
    """)
    assert found == (0, "pool\nthread; atexit; libc; ", QUICK)


@pytest.mark.parametrize(
    "main, status, message",
    [
        ("lambda: 3", 3, ""),
        ("lambda: sys.exit(4)", 4, ""),
        ("lambda: sys.exit()", 0, ""),
        ("lambda: (_ for _ in ()).throw(UsageError('no such file: a; name another'))", 2, "error: no such file: a; "),
        ("lambda: (_ for _ in ()).throw(KeyboardInterrupt())", 130, "interrupted\n"),
    ],
)
def test_the_status_is_that_of_the_command(main, status, message):
    returncode, output, error = run(f"run_main({main})")
    assert (returncode, output) == (status, "")
    assert error.startswith(message)
    assert WHOLE not in error


@pytest.mark.parametrize("name, is_told", [("SIGUSR1", True), ("SIGCHLD", False)])  # the latter of loading processes
def test_a_signal_on_the_way_out_does_not_change_the_status(name, is_told):
    status, output, error = run(f"""
        import os, signal

        def fail(number, frame):
            raise RuntimeError("a loading process has ended")

        signal.signal(signal.{name}, fail)
        atexit.register(lambda: os.kill(os.getpid(), signal.{name}))
        run_main(lambda: 3)
    """)
    assert (status, output) == (3, "")
    assert ("a loading process has ended" in error) == is_told


@pytest.mark.parametrize(
    "change",
    [
        "quick_exit.is_command = lambda: False",  # the process is the user's
        "quick_exit.sys = SimpleNamespace(modules={}, flags=SimpleNamespace(inspect=1))",  # python -i
        "sys.modules['torch.cuda'] = SimpleNamespace(is_initialized=lambda: True)",
    ],
)
def test_other_processes_and_those_with_a_gpu_are_torn_down_as_usual(change):
    assert run(f"{change}\nrun_main(lambda: 3)") == (3, "", WHOLE)
