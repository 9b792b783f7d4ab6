"""docs/token_labeling.md: its commands run, on small data; the options of label maps and of training are in it."""

import argparse
import re

from tests.support import REPOSITORY
from tests.vision.conftest import make_split
from tests.vision.test_docs import COMMAND, commands
from vision import check_label, generate_label, train, validate
from vision.cli.train_options import train_parser
from vision.generate_label import label_parser
from vision.validate import validate_parser

PROGRAMS = {"train": train, "validate": validate, "generate_label": generate_label, "check_label": check_label}
TEXT = (REPOSITORY / "docs" / "token_labeling.md").read_text(encoding="utf-8")


def test_commands(tmp_path, monkeypatch, capsys):
    """In their order, for the later ones read what the first ones write; training is cut to one update."""
    monkeypatch.chdir(tmp_path)
    for data, names in (("flowers", ["rose", "tulip"]), ("birds", ["crow", "robin", "wren"])):
        for split in ("train", "val"):
            make_split(tmp_path / data / split, names, count=2)
    small = ["--device", "cpu", "-j", "0"]
    found = commands(TEXT)
    assert len(found) == 7
    for command in found:
        program, words = COMMAND.match(command).groups()
        more = {
            "check_label": ["-j", "0"],
            "train": ["--dry-run" if "--finetune" in words else "--max-steps=1", *small],
        }
        assert not PROGRAMS[program].main([*words.split(), *more.get(program, small)]), command
    out = capsys.readouterr().out
    assert "every image has its label map" in out
    assert "top-1" in out
    assert out.count("loss of the first") == 2


def test_every_option_is_documented():
    others = train_parser().options().keys() | validate_parser().options().keys()
    (labeling,) = [group for group in train_parser()._action_groups if group.title == "token labeling"]
    own = [action for action in label_parser()._actions if action.dest not in others]
    flags = [
        flag
        for action in (*labeling._group_actions, *own)
        if not isinstance(action, argparse._HelpAction) and action.help is not argparse.SUPPRESS
        for flag in action.option_strings
    ]
    assert {"--ground-truth", "--shard", "--no-mix-token"} <= set(flags)
    assert [flag for flag in flags if not re.search(rf"`[^`]*{flag}(?![\w-])[^`]*`", TEXT)] == []


def test_options_in_the_text_exist():
    known = {flag for parser in (train_parser(), label_parser()) for flag in parser._option_string_actions}
    assert set(re.findall(r"(?<![\w-])--[a-z][\w-]+", TEXT)) - known == {"--nproc_per_node"}
