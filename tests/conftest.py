import os

import pytest
import torch

from tests.support import need_shared

os.environ["SOT_OFFLINE"] = "1"  # the tests run without a network; those of downloads bring their own server


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
