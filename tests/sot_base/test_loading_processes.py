"""Loading processes ignore signals, and end with the process that started them."""

import subprocess
import sys

SCRIPT = """
import os, signal, time
from torch.utils.data import DataLoader
from sot_base.loading_processes import end_loading_processes_at_exit, leave_signals_to_the_parent

def start():
    end_loading_processes_at_exit()
    options = {"num_workers": 2, "persistent_workers": True, "worker_init_fn": leave_signals_to_the_parent}
    loader = DataLoader(range(40), 4, **options)
    batches = iter(loader)
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
    run = subprocess.run([sys.executable, "-c", SCRIPT], capture_output=True, text=True, timeout=300)
    assert run.returncode == 0, run.stderr
    batches, *processes = map(int, run.stdout.split())
    assert batches == 9
    assert len(processes) == 2
