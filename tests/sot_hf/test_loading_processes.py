"""Signals to the processes that load data."""

import os
import signal

import pytest
from torch.utils.data import DataLoader, Dataset

from sot_hf.loading_processes import LoadingContext, obey_the_trainer_alone


class ProcessIds(Dataset):
    """Each row is the number of the process that loads it."""

    def __len__(self):
        return 100_000

    def __getitem__(self, index):
        return os.getpid()


def test_they_outlive_signals_from_outside_and_end_with_the_trainer():
    loader = DataLoader(
        ProcessIds(), batch_size=4, num_workers=1, multiprocessing_context=LoadingContext(),
        worker_init_fn=obey_the_trainer_alone,
    )  # fmt: skip
    rows = iter(loader)
    worker = int(next(rows)[0])
    for number in (signal.SIGTERM, signal.SIGINT):
        stranger = os.fork()
        if stranger == 0:
            os.kill(worker, number)
            os._exit(0)
        os.waitpid(stranger, 0)
    for _ in range(50):
        assert set(next(rows).tolist()) == {worker}
    os.kill(worker, signal.SIGTERM)  # the trainer's own, as at the end of its process
    with pytest.raises((RuntimeError, EOFError, ConnectionError)):  # as it dies between two batches, or in one
        list(rows)
