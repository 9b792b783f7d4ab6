import contextlib
import gc
import os
import subprocess
import sys

import pytest

from sot_base import garbage
from tests.support import REPOSITORY


@pytest.fixture(autouse=True)
def unfrozen():
    gc.unfreeze()
    yield
    gc.unfreeze()
    gc.enable()


@pytest.mark.parametrize("command", [True, False])
@pytest.mark.parametrize("enabled", [True, False])
def test_collector_works_as_before_after_the_block(enabled, command, monkeypatch):
    monkeypatch.setattr(garbage, "is_command", lambda: command)
    if not enabled:
        gc.disable()
    with contextlib.suppress(ImportError), garbage.collect_later():
        assert not gc.isenabled()
        raise ImportError
    assert gc.isenabled() == enabled
    assert (gc.get_freeze_count() > 0) == command


@pytest.mark.parametrize(
    "words, keeps",
    [
        (["-m", "sot_hf.run_glue"], True),
        (["-c", "import sot_hf.run_glue"], False),
        ([str(REPOSITORY / "vision" / "validate.py")], True),
        (["-c", "import vision.validate"], False),
    ],
)
def test_only_commands_keep_what_is_there(words, keeps, tmp_path):
    hook = "import atexit, gc; atexit.register(lambda: print('kept', gc.get_freeze_count(), gc.isenabled()))"
    (tmp_path / "sitecustomize.py").write_text(hook)
    environment = {**os.environ, "PYTHONPATH": f"{tmp_path}{os.pathsep}{REPOSITORY}"}
    done = subprocess.run([sys.executable, *words], env=environment, capture_output=True, text=True)
    _, count, enabled = done.stdout.split()[-3:]
    assert enabled == "True"
    assert (int(count) > 100_000) == keeps
