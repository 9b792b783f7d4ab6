"""The command lines as programs: from any folder, as files and as modules; errors of one line; the demonstration."""

import os
import re
import runpy
import subprocess
import sys
import warnings

import pytest

from tests.support import REPOSITORY
from tests.vision.conftest import TINY
from vision import train as train_module


def run(folder, *words):
    """Run a command in a process of its own; it takes seconds to import torch and timm."""
    return subprocess.run(
        [sys.executable, *map(str, words)],
        capture_output=True,
        text=True,
        cwd=folder,
        env=os.environ | {"OMP_NUM_THREADS": "1"},
        timeout=300,
    )


@pytest.mark.e2e
def test_training_from_another_folder(images, tmp_path):
    process = run(tmp_path, REPOSITORY / "vision" / "train.py", images, *TINY, "--dry-run")
    assert process.returncode == 0, process.stderr
    assert "loss of the first 8 images: " in process.stdout
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    "script", ["train", "validate", "predict", "check_data", "summary", "generate_label", "check_label"]
)
def test_a_file_and_a_module(script, tmp_path, monkeypatch, capsys):
    """``python vision/SCRIPT.py`` from any folder, which puts its own on the path first, and ``python -m``."""
    path = REPOSITORY / "vision" / f"{script}.py"
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", [str(path), "--help"])
    helps = []
    for start in (lambda: runpy.run_path(str(path), run_name="__main__"), lambda: _run_module(f"vision.{script}")):
        monkeypatch.setattr(sys, "path", [str(path.parent), *sys.path])
        with pytest.raises(SystemExit) as info:
            start()
        assert info.value.code == 0
        helps.append(capsys.readouterr().out)
    assert helps[0] == helps[1]
    assert f"usage: {script}.py" in helps[0]


def _run_module(name):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)  # the module is imported already
        runpy.run_module(name, run_name="__main__")


@pytest.mark.e2e
def test_errors_are_one_line_and_status_2(tmp_path):
    process = run(tmp_path, REPOSITORY / "vision" / "train.py", "nowhere", "--device", "cpu")
    assert process.returncode == 2
    assert re.fullmatch(r"error: no such folder or tar: [^\n]*nowhere; [^\n]*\n", process.stderr)
    assert process.stdout == ""


def test_the_demonstration(tmp_path, monkeypatch, capsys):
    """Cut short; the whole of it takes a minute or two and ends above 97 %."""
    monkeypatch.chdir(tmp_path)
    train_module.main(["--epochs", "3", "--max-steps", "2"])
    out = capsys.readouterr().out
    assert re.search(r"MGCrP head: \d+\.\d\d % of the digits right, checkpoint out/digits/digits-mgcrp/\S+\n", out)
    assert re.search(r"  CLS head: \d+\.\d\d % of the digits right, checkpoint out/digits/digits-cls/\S+\n", out)
    assert {path.name for path in (tmp_path / "out" / "digits").iterdir()} == {
        "digits-mgcrp",
        "digits-cls",
        "digits.png",
    }
    for head in ("mgcrp", "cls"):
        files = {path.name for path in (tmp_path / "out" / "digits" / f"digits-{head}").iterdir()}
        assert {"model_best.pth.tar", "last.pth.tar", "summary.csv", "options.yaml", "curves.png"} <= files


@pytest.mark.slow
def test_digits_are_learnt(tmp_path, monkeypatch, capsys):
    """The demonstration's run with the MGCrP head, in full."""
    monkeypatch.chdir(tmp_path)
    train_module.main(["--config", "digits"])
    assert float(re.search(r"best top-1: (\d+\.\d\d) %", capsys.readouterr().out)[1]) >= 97
