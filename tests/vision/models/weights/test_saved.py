"""What a checkpoint says of its model and its run is checked: no path of it is opened or removed, no size believed."""

import os
import shutil

import pytest
import torch

from sot_base.errors import UsageError
from tests.vision.conftest import load
from vision import validate
from vision.models.weights.read import read_checkpoint

QUICK = ("--device", "cpu", "-j", "0", "-b", "6")


@pytest.fixture
def change(trained, tmp_path):
    """Write the trained checkpoint with another value in one place; gives the file."""

    def write(*path, value):
        content = load(trained)
        place = content
        for key in path[:-1]:
            place = place[key]
        place[path[-1]] = value
        torch.save(content, tmp_path / "changed.pth.tar")
        return tmp_path / "changed.pth.tar"

    return write


@pytest.mark.parametrize(
    "path,value,problem",
    [
        (("recipe", "name"), "hf-hub:someone/model", "unknown model 'hf-hub:someone/model': recipe of "),
        (("recipe", "name"), 3, "name: expected str, got int: recipe of "),
        (("recipe", "kwargs"), {"checkpoint_path": "/x"}, "an argument that loads other files, checkpoint_path"),
        (("recipe", "kwargs"), {"pretrained_cfg_overlay": {"file": "/x"}}, "an argument that loads other files"),
        (("recipe", "kwargs"), {"depth": 10**6}, "argument depth is 1000000, more than 512"),
        (("recipe", "kwargs"), {"embed_dim": 10**6}, "argument embed_dim is 1000000, more than 16384"),
        (("recipe", "kwargs"), {"a": [[[[[[[[[[1]]]]]]]]]]}, "argument a is not a plain value"),
        (("recipe", "kwargs", "embed_dim"), 4096, r"a model of [\d,]+ parameters, [\d,]+ are in the file"),
        (("recipe", "num_classes"), "3", "num_classes: expected int, got str"),
        (("recipe", "head"), {"num_heads": "4"}, "num_heads must be a positive integer, got '4': head of "),
        (("recipe", "head"), {"q_dim": 10**6}, "argument q_dim is 1000000, more than 16384: head of "),
        (("data_config",), {"input_size": [3, 8]}, "input_size: expected array of length 3, got 2: data_config of "),
        (("class_names",), [1, 2, 3], r"class_names of "),
        (("options",), [], "expected object, got array: options of "),
        (("state_dict", "cls_token"), "text", "an entry that is not a tensor: state_dict of "),
        (("saver",), {"checkpoint_files": [("/etc/passwd", 1.0)]}, r"checkpoint_files.*: expected str matching regex"),
        (("saver",), {"checkpoint_files": [("../x", 1.0)]}, r"checkpoint_files.*: expected str matching regex"),
    ],
)
def test_an_entry_that_is_not_what_it_should_be_is_named(change, images, path, value, problem):
    file = change(*path, value=value)
    with pytest.raises(UsageError, match=problem) as caught:
        validate.main([str(images), "--checkpoint", str(file), *QUICK])
    assert str(file) in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_missing_entry_is_named(trained, tmp_path):
    for name in ("data_config", "class_names", "options"):
        content = load(trained)
        del content[name]
        torch.save(content, tmp_path / "changed.pth.tar")
        with pytest.raises(UsageError, match=f"{name} is missing: .*changed"):
            read_checkpoint(tmp_path / "changed.pth.tar")


def test_a_resumed_run_removes_no_file_elsewhere(train, images, tmp_path):
    """timm's saver removes the worst of the files that the checkpoint lists."""
    folder = train(images, "--epochs", 1, "-b", 4)
    precious = tmp_path / "precious"
    precious.write_text("work of years")
    content = load(folder)
    content["saver"]["checkpoint_files"] = [(str(precious), -1.0)] * 20
    torch.save(content, folder / "last.pth.tar")
    with pytest.raises(UsageError, match="checkpoint_files"):
        train(images, "--epochs", 2, "-b", 4, "--checkpoint-hist", 1, "--resume")
    assert precious.read_text() == "work of years"


@pytest.mark.parametrize(
    "path,value",
    [
        (("optimizer", "param_groups", 0, "betas"), "text"),
        (("optimizer", "param_groups", 0, "lr"), [1]),
        (("optimizer", "param_groups"), []),
        (("optimizer", "state"), {0: {"exp_avg": "text"}}),
        (("optimizer", "state"), {0: []}),
    ],
)
def test_a_damaged_optimizer_is_one_line(train, images, path, value):
    folder = train(images, "--epochs", 1, "-b", 4)
    content = load(folder)
    place = content
    for key in path[:-1]:
        place = place[key]
    place[path[-1]] = value
    torch.save(content, folder / "last.pth.tar")
    with pytest.raises(UsageError, match="--resume: the checkpoint has another optimizer"):
        train(images, "--epochs", 2, "-b", 4, "--resume")


def test_a_finished_run_that_is_resumed_elsewhere_keeps_its_best_checkpoint(train, images, tmp_path, capsys):
    folder = train(images, "--epochs", 1, "-b", 4)
    moved = shutil.move(folder, tmp_path / "moved")
    train(images, "--epochs", 1, "-b", 4, "--resume", os.path.join(moved, "last.pth.tar"), name="again")
    assert "checkpoint runs/again/model_best.pth.tar" in capsys.readouterr().out
    assert (tmp_path / "runs" / "again" / "model_best.pth.tar").samefile(tmp_path / "moved" / "model_best.pth.tar")
