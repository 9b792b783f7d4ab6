"""docs/segmentation.md: its commands run, on small data and a tiny model; every option is in it."""

import argparse
import re
import shlex

import pytest
import timm
import torch

from tests.support import REPOSITORY
from tests.vision.conftest import printed_options
from tests.vision.models.test_lvvit import published_names
from tests.vision.segment.conftest import RECIPE, TINY, make_pair, make_set
from tests.vision.segment.mmseg import mmseg_state
from tests.vision.test_docs import MIGRATION, rows
from vision.segment import predict, summary, train, validate
from vision.segment.options import train_parser

PROGRAMS = {"train": train, "validate": validate, "predict": predict, "summary": summary}
TEXT = (REPOSITORY / "docs" / "segmentation.md").read_text(encoding="utf-8")
COMMAND = re.compile(
    r"^(?:python|torchrun --nproc_per_node \d+) (?:-m vision\.segment\.|vision/segment/)(\w+)(?:\.py)? ?(.*)$"
)
MODEL = TINY[:-6]  # all but the classes and the device
DEVICE = TINY[-4:]


def commands():
    blocks = re.findall(r"^```bash\n(.*?)^```", TEXT, flags=re.MULTILINE | re.DOTALL)
    return [line for block in blocks for line in block.splitlines()]


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """Where the reader stands, with a classifier and a model of mmsegmentation that are tiny."""
    monkeypatch.chdir(tmp_path)
    for name in ("ADE20K", "shapes"):
        make_set(tmp_path / name, {"training": 2, "validation": 1})
    make_pair(0)[0].save("photo.jpg")
    (tmp_path / "photos").mkdir()
    make_pair(1)[0].save("photos/a.jpg")
    state = published_names(timm.create_model("lvvit_t", **RECIPE["kwargs"]))
    for name in ("lvvit_s-26M-384-84.4.pth.tar", "lvvit_m-56M-384-85.4.pth.tar"):
        torch.save({"state_dict": state}, name)
    torch.save({"state_dict": mmseg_state()}, "upernet_lvvit_s.pth")
    monkeypatch.setenv("SOT_CACHE", str(tmp_path / "cache"))
    cached = tmp_path / "cache/vision/github.com/zihangJiang/TokenLabeling/releases/download/v1.1-seg"
    cached.mkdir(parents=True)
    torch.save({"state_dict": mmseg_state()}, cached / "upernet_lvvit_s.pth")
    return tmp_path


def test_commands(folder, capsys):
    found = commands()
    assert len(found) == 11
    for command in found:
        program, words = COMMAND.match(command).groups()
        more = DEVICE if program in ("train", "validate") else DEVICE[:2] if program == "predict" else ()
        if program == "train":
            classes = ["--num-classes", "5" if "--no-reduce-zero-label" in words else "4"]
            more = [*MODEL, *classes, *DEVICE, "-b", "2", "--steps", "1"]
        elif "upernet" in words or "--pretrained" in words:
            more = [
                *(MODEL[2:7] if "--pretrained" in words else MODEL[:7]),
                *DEVICE,
                "--crop-size",
                "64",
                "--short-side",
                "64",
            ]
        assert not PROGRAMS[program].main([*shlex.split(words), *more]), command
    out = capsys.readouterr().out
    assert out.count("mIoU") == 3 + 5
    printed = {line.split()[0]: line.split()[1:] for line in out.splitlines() if line.strip()}
    for name in ("lvvit_s", "lvvit_m", "lvvit_l", "sot_small"):
        row = re.search(rf"^\| `{name}` \|(.*)\|$", TEXT, flags=re.MULTILINE)[1]
        assert [cell.strip(" M") for cell in row.split("|")] == [cell.strip("-") for cell in printed[name]], name
    names = {str(path.relative_to(folder)) for path in folder.rglob("*.*")}
    assert {"classes.csv", "masks/photo.png", "masks/a_color.png", "masks/a_overlay.png"} <= names


def test_every_option_is_documented():
    parsers = {"T": train_parser(), "V": validate.validate_parser(), "P": predict.predict_parser()}
    table = TEXT[TEXT.index("## Options") :].splitlines()
    for letter, parser in parsers.items():
        for action in parser._actions:
            if isinstance(action, argparse._HelpAction) or action.help == argparse.SUPPRESS:
                continue
            for flag in action.option_strings:
                if not re.match("--no-(native|apex)", flag):
                    lines = [line for line in table if re.search(rf"`{flag}`", line)]
                    assert any(letter in line.split(" | ")[1] for line in lines), (flag, letter)


EVALUATIONS = {  # of the published configuration, whose name has the size; windows and scales are mmsegmentation's
    "": {"window": 512, "stride": 341, "short_side": 512, "scales": [1.0], "flip": False},
    "--aug-test": {"scales": [0.5, 0.75, 1.0, 1.25, 1.5, 1.75], "flip": True},
}


@pytest.mark.parametrize("more", EVALUATIONS)
def test_a_published_evaluation_prints_what_was_published(folder, capsys, more):
    (new,) = [new for old, new in rows(MIGRATION) if "dist_test.sh" in old and ("--aug-test" in old) is bool(more)]
    _, words = COMMAND.match(new).groups()
    validate.main([*shlex.split(words), *MODEL[2:7], *DEVICE, "--dry-run"])
    printed = printed_options(capsys.readouterr().out)
    assert printed["inference"] == EVALUATIONS[""] | EVALUATIONS[more]
    assert (printed["model"], printed["recipe"]["num_classes"]) == ("lvvit_s", 4)
