"""Which processes are commands of the toolkit."""

import sys

import pytest

from sot_base.started_command import is_command, started_module
from tests.support import REPOSITORY


@pytest.mark.parametrize(
    "words, module",
    [
        (["-m", "sot_hf.run_glue", "--help"], "sot_hf.run_glue"),
        (["-X", "importtime", "-W", "error", "-um", "sot_hf.run_glue"], "sot_hf.run_glue"),
        (["-u", str(REPOSITORY / "vision" / "train.py"), "-m", "2"], "vision.train"),
        (["-c", "import sot_hf", "-m", "sot_hf.run_glue"], ""),
        (["-Ic", "import sot_hf"], ""),
        (["/usr/bin/coverage", "run", "-m", "sot_hf.run_glue"], ""),
        (["-m", "cProfile", "-m", "sot_hf.run_glue"], "cProfile"),
        ([], ""),
        (["-m"], ""),
    ],
)
def test_the_module_is_what_python_runs(words, module, monkeypatch):
    monkeypatch.setattr(sys, "orig_argv", ["python", *words])
    assert started_module() == module
    assert is_command() == module.startswith(("sot_", "vision"))
