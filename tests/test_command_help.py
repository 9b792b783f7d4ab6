"""``--help`` of a command prints at once: it imports no library that takes long, and shows what the command parses."""

import importlib
import os
import re
import subprocess
import sys

import pytest

from sot_base import command_help
from sot_core import build, names, options, projection
from sot_fairseq import command_options as fairseq_options
from sot_fairseq.tokenizers.subwords import SUBWORDS
from sot_visual import names as visual_names
from sot_visual.attribution import METHODS
from tests.support import REPOSITORY
from vision import generate_label
from vision.cli import command_options as vision_options
from vision.segment import options as segment_options
from vision.segment.neck import NECKS

HEAVY = {"torch", "transformers", "timm", "fairseq", "sklearn", "scipy", "pandas", "torchvision", "matplotlib"}
HEAVY |= {"hydra", "tensorboard", "datasets", "tokenizers", "accelerate", "optuna"}
SIDES = ("convert", "predict", "prepare", "probe", "results", "visualize")
MODULES = [f"{package}.{name}" for package in ("sot_fairseq", "sot_hf") for name in SIDES] + ["sot_hf.export"]
MODULES += [f"sot_fairseq.{name}" for name in ("download", "encoders", "evaluate", "preprocess", "sweep")]
MODULES += ["sot_visual.compare"]
VISION = ("check_data", "check_label", "export", "generate_label", "predict", "probe", "summary", "train", "validate")
MODULES += [f"vision.{name}" for name in (*VISION, "visualize")]
MODULES += [f"vision.segment.{name}" for name in ("predict", "summary", "train", "validate")]
FILES = [f"vision/{name}.py" for name in VISION if name != "summary"] + ["vision/segment/train.py"]


def run_help(*words):
    environment = {**os.environ, "PYTHONPATH": str(REPOSITORY), "COLUMNS": "100"}
    command = [sys.executable, "-X", "importtime", *words, "--help"]
    return subprocess.run(command, cwd=REPOSITORY, env=environment, capture_output=True, text=True, check=True)


def imported(done):
    return set(re.findall(r"\| +(\w+)$", done.stderr, flags=re.MULTILINE))


@pytest.mark.parametrize("module", MODULES)
def test_help_needs_no_library_that_takes_long(module):
    done = run_help("-m", module)
    assert "usage: " in done.stdout
    assert "argparse" in imported(done)
    assert not HEAVY & imported(done)


@pytest.mark.parametrize("path", FILES)
def test_help_of_files(path):
    done = run_help(path)
    assert "usage: " in done.stdout
    assert not HEAVY & imported(done)


@pytest.mark.parametrize("module", ["sot_hf.predict", "sot_fairseq.probe", "vision.validate", "vision.segment.predict"])
def test_help_is_that_of_the_command(module, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "100")
    with pytest.raises(SystemExit):
        importlib.import_module(module).main(["--help"])
    assert capsys.readouterr().out == run_help("-m", module).stdout


def test_names_are_those_of_the_tables():
    assert tuple(build.POOLINGS) == names.POOLINGS
    assert tuple(build.NORMALIZATIONS) == names.NORMALIZATIONS
    assert tuple(build.FUSIONS) == names.FUSIONS
    both = [name for name, part in build.FUSIONS.items() if part.uses_words and (part.uses_cls or part.pools_cls)]
    assert tuple(both) == names.FUSIONS_OF_BOTH
    assert tuple(projection.PROJECTIONS) == names.PROJECTIONS
    assert {option.name for option in options.HEAD_OPTIONS if option.choices} >= {"head_pooling", "head_fusion"}
    assert tuple(METHODS) == visual_names.METHODS
    assert tuple(SUBWORDS) == fairseq_options.SUBWORDS
    assert tuple(generate_label._WRITERS) == vision_options.LABEL_FORMATS
    assert tuple(NECKS) == segment_options.NECKS


@pytest.mark.parametrize(
    "words, arguments, asked",
    [
        (["python", "-m", "sot_hf.predict", "--help"], ["-m", "--help"], True),
        (["python", "-m", "sot_hf.predict", "-h"], ["-m", "-h"], True),
        (["python", "-m", "sot_hf.predict", "run"], ["-m", "run"], False),
        (["python", "-m", "sot_hf.run_glue", "--help"], ["-m", "--help"], False),
        (["python", "-m", "sot_fairseq.sweep", "out", "--", "--help"], ["-m", "out", "--", "--help"], False),
        (["python", "-m", "pytest", "--help"], ["-m", "--help"], False),
        (["python", "vision/train.py", "--help"], [str(REPOSITORY / "vision/train.py"), "--help"], True),
        (["python", "mine.py", "--help"], ["mine.py", "--help"], False),
        (["python"], [""], False),
    ],
)
def test_which_processes_are_started_for_help(words, arguments, asked, monkeypatch):
    monkeypatch.setattr(sys, "orig_argv", words)
    monkeypatch.setattr(sys, "argv", arguments)
    assert command_help.asked_for_help() == asked


def test_public_names_of_the_core():
    import sot_core

    for name in sot_core.__all__:
        assert getattr(sot_core, name).__name__ == name
    assert set(sot_core._PLACES) == set(sot_core.__all__)
    with pytest.raises(AttributeError, match="has no attribute 'Nothing'"):
        sot_core.Nothing  # noqa: B018
