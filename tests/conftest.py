import os
import signal

import pytest
import torch

from tests.support import need_shared

os.environ["SOT_OFFLINE"] = "1"  # the tests run without a network; those of downloads bring their own server


def pytest_configure():
    """Started in the background, as by ``nohup``, the tests and what they start would ignore signals."""
    for number, handler in ((signal.SIGHUP, signal.SIG_DFL), (signal.SIGINT, signal.default_int_handler)):
        if signal.getsignal(number) is signal.SIG_IGN:
            signal.signal(number, handler)


def pytest_addoption(parser):
    parser.addoption("--kills", type=int, help="kill trainings so often in each of their files (make kills: 10)")


@pytest.fixture
def kills(request):
    """How often to kill a training in each of its files; None: in some files, once or twice."""
    return request.config.getoption("--kills")


@pytest.fixture(scope="session")
def shared():
    """The folder of reference files and data; the test is skipped where it is absent."""
    return need_shared()


@pytest.fixture
def float64():
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(torch.float32)


@pytest.fixture(autouse=True)
def _seed():
    torch.manual_seed(0)
