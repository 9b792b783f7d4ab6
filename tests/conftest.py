import os
import signal

import pytest
import torch

from tests.support import need_shared

os.environ["SOT_OFFLINE"] = "1"  # the tests run without a network; those of downloads bring their own server


def pytest_configure():
    """Make up for what would change the tests' outcome: signals that are ignored, and a fault of torch.

    Started in the background, as by ``nohup``, the tests and what they start would ignore signals. Told to use other
    kernels than the processor's best, torch packs bfloat16 for the latter all the same and ends with an error.
    """
    if os.environ.get("ATEN_CPU_CAPABILITY") in ("avx2", "default"):
        torch.backends.cuda.enable_flash_sdp(False)  # attention on the CPU, too
    for number, handler in ((signal.SIGHUP, signal.SIG_DFL), (signal.SIGINT, signal.default_int_handler)):
        if signal.getsignal(number) is signal.SIG_IGN:
            signal.signal(number, handler)


def pytest_collection_modifyitems(items):
    """Files with long tests first: a worker that begins one last would leave the other idle."""
    slow = {item.path for item in items if item.get_closest_marker("slow") or item.get_closest_marker("e2e")}
    items.sort(key=lambda item: item.path not in slow)


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
