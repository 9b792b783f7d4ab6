"""The processes that load data: signals to them, and what becomes of one that was killed."""

import os
import re
import signal
import subprocess
import sys
import textwrap

import pytest
from torch.utils.data import DataLoader, Dataset

from sot_base.loading_processes import LoadingContext, loading_process_message, obey_the_trainer_alone
from tests.support import REPOSITORY


class ProcessIds(Dataset):
    """Each row is the number of the process that loads it."""

    def __len__(self):
        return 100_000

    def __getitem__(self, index):
        return os.getpid()


def start():
    """A loader with one process, and its process's number."""
    loader = DataLoader(
        ProcessIds(), batch_size=4, num_workers=1, multiprocessing_context=LoadingContext(),
        worker_init_fn=obey_the_trainer_alone,
    )  # fmt: skip
    rows = iter(loader)
    return rows, int(next(rows)[0])


def test_they_outlive_signals_from_outside():
    rows, worker = start()
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        stranger = os.fork()
        if stranger == 0:
            os.kill(worker, number)
            os._exit(0)
        os.waitpid(stranger, 0)
    for _ in range(50):
        assert set(next(rows).tolist()) == {worker}


@pytest.mark.parametrize("function", ["obey_the_trainer_alone(0)", "leave_signals_to_the_parent()"])
def test_a_trainer_that_has_gone_is_no_traceback(function):
    code = f"""
        import os, sys, threading
        from multiprocessing import Pipe, resource_sharer
        from multiprocessing.connection import Client
        from sot_base.loading_processes import leave_signals_to_the_parent, obey_the_trainer_alone

        {function}
        address, key = resource_sharer.DupFd(1)._id
        Client(address).close()  # without the handshake
        resource_sharer.DupFd(1).detach()  # is answered after the former
        sys.excepthook(ValueError, ValueError("another error"), None)
        sys.stderr.flush()
        os._exit(0)
    """
    done = subprocess.run([sys.executable, "-c", textwrap.dedent(code)], cwd=REPOSITORY, capture_output=True, text=True)
    assert done.stderr == "ValueError: another error\n"


class Failing(ProcessIds):
    """Rows that cannot be read, for a reason of their own."""

    def __init__(self, error):
        self.error = error

    def __getitem__(self, index):
        raise self.error


@pytest.mark.parametrize("error", [RuntimeError("shapes differ"), EOFError("cut off"), ConnectionError("no server")])
@pytest.mark.parametrize("workers", [0, 1])
def test_other_errors_of_loading_are_not(error, workers):
    with pytest.raises(type(error)) as caught:
        list(DataLoader(Failing(error), num_workers=workers))
    assert loading_process_message(caught.value) is None


PROGRAM = """
from sot_base.errors import UsageError, run_main
from tests.sot_base.test_loading_processes import start
import os, signal

def main():
    global rows
    rows, worker = start()
    for _ in range({batches}):
        next(rows)
    {end}
    for _ in rows:
        pass

run_main(main)
"""


KILLED = r"error: a loading process (was killed \(Killed\)|has ended): the data loader; use fewer .*\n"


@pytest.mark.parametrize("number", ["SIGKILL", "SIGTERM"])  # the latter from the trainer itself, as at its end
@pytest.mark.parametrize("batches", range(3))
def test_one_that_was_killed_is_named(batches, number):
    assert re.fullmatch(KILLED, end_of_a_command(batches, f"os.kill(worker, signal.{number})"))


def test_a_command_ends_though_they_wait_for_work():
    """The interpreter waits for processes that still live."""
    assert end_of_a_command(1, "raise UsageError('no more: here; stop')") == "error: no more: here; stop\n"


def end_of_a_command(batches, end):
    """What a command writes that ends after some batches."""
    program = [sys.executable, "-c", PROGRAM.format(batches=batches, end=end)]
    done = subprocess.run(program, cwd=REPOSITORY, capture_output=True, text=True, check=False, timeout=300)
    assert done.returncode == 2, done.stderr
    return done.stderr


IGNORING = """
import os, signal, time
from torch.utils.data import DataLoader
from sot_base.loading_processes import end_loading_processes_at_exit, leave_signals_to_the_parent

def ignore(worker):
    leave_signals_to_the_parent()

def start():
    end_loading_processes_at_exit()
    options = {"num_workers": 2, "persistent_workers": True, "worker_init_fn": ignore}
    loader = DataLoader(range(40), 4, **options)
    batches = iter(loader)
    for _ in range(2):  # one of each process: both have started
        next(batches)
    return batches

batches = start()  # lives until the interpreter ends, and with it the processes, which wait for work
processes = [worker.pid for worker in batches._workers]
for process in processes:
    for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGINT):
        os.kill(process, number)
print(len(list(batches)), *processes)
"""


def test_signals_do_not_end_them_but_the_end_of_the_parent_does():
    # without the kill at exit the parent waits for its processes for ever
    run = subprocess.run([sys.executable, "-c", IGNORING], capture_output=True, text=True, timeout=300)
    assert run.returncode == 0, run.stderr
    batches, *processes = map(int, run.stdout.split())
    assert batches == 8
    assert len(processes) == 2
