"""The published commands for images: they run here as they are typed there, and print what was published."""

import json
import re
import shlex
import shutil

import pytest
import timm
import torch

from tests.support import GOLDEN, need_shared
from tests.vision import published_recipes as facts
from tests.vision.conftest import load, make_split, printed_options
from tests.vision.data.test_sources import cifar_files
from tests.vision.test_docs import MIGRATION, hvt_names, lvvit_names, published_names, rows, save_label_maps
from vision import train, validate
from vision.cli.hvt_files import HVT_SIZES
from vision.data.classes import imagenet_a_names
from vision.models.names import PUBLISHED_NAMES

QUICK = ("--device", "cpu", "-j", "0")
SIZES = {"embed_dim": 24, "depth": 1, "num_heads": 2}
SMALL = {  # sizes with which the models of a family are quick
    "SoT": {**SIZES, "token_embed": {"token_dim": 4, "dense_layers": 1}},
    "So_": {**SIZES, "token_embed": {"token_dim": 4}},
    "hvt": {"num_heads": 1, "head_dim": 8, "num_blocks": 1},
    "lvv": {**SIZES, "stem_width": 8},
}
CHECKPOINTS = {  # files of the migration's commands, and the models in them
    "SoT_Tiny.pth.tar": ("SoT_Tiny", published_names),
    "So-ViT-7.pth.tar": ("So_vit_7", published_names),
    "hvt_s_1.pth": ("hvt_small_1", hvt_names),
    "lvvit_s-26M-224-83.3.pth.tar": ("lvvit_s", lvvit_names),
    "lvvit_s-26M-384-84.4.pth.tar": ("lvvit_s_384", lvvit_names),
}


def small(name):
    """The arguments that make a model of this name quick, as words."""
    return [f"{key}={value!r}" for key, value in SMALL[name[:3]].items()]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A reader's folder: images of three of ImageNet's classes, label maps, CIFAR's files, HVT's, small checkpoints."""
    root = tmp_path_factory.mktemp("reader")
    for split in ("DIR/train", "DIR/val", "IMAGENET_A"):
        make_split(root / split, imagenet_a_names()[:3], count=2)
    save_label_maps(root / "LABELS", root / "DIR")
    (root / "CIFAR100").mkdir()
    cifar_files(root / "CIFAR100", "cifar100")
    shutil.copytree(GOLDEN / "recipes" / "hvt", root / "config")
    for file, (name, rename) in CHECKPOINTS.items():
        torch.save({"state_dict": rename(timm.create_model(name, **SMALL[name[:3]]))}, root / file)
    return root


TRAININGS, EVALUATIONS = [], []
for _old, _new in rows(MIGRATION):
    if re.search(r"distributed|\.sh|main\.py", _old) and re.search(r"vision/(train|validate)\.py", _new):
        is_evaluation = "validate.py" in _new or "--eval " in _new
        (EVALUATIONS if is_evaluation else TRAININGS).append((_old.strip(" `"), _new))


def parts(command):
    """The processes and the arguments of a command of ours."""
    _, processes, words = re.match(
        r"(torchrun --nproc_per_node (\d+)|python) vision/(?:train|validate)\.py (.*)", command
    ).groups()
    return processes or "1", shlex.split(words)


def model_of(words):
    """The published name of the model that a command asks for."""
    name = train.parse_train_args(words).model
    return {ours: theirs for theirs, ours in PUBLISHED_NAMES.items()}.get(name, name)


@pytest.mark.parametrize("old, new", TRAININGS)
def test_a_published_command_prints_the_published_training(old, new, folder, monkeypatch, capsys):
    """The script's defaults, what the model's README and files say, and what was typed.

    One process stands for all: it accumulates gradients over as many batches, with which HVT's learning rate grows.
    """
    monkeypatch.chdir(folder)
    processes, words = parts(new)
    name = model_of(words)
    train.main([*words, "--model-kwargs", *small(name), "--grad-accum-steps", processes, "--dry-run", *QUICK])
    printed = printed_options(capsys.readouterr().out)
    script = next(script for asked, (script, _) in facts.SCRIPTS.items() if asked[1].startswith(name[:3]))
    asked = ("typed", name) if script != facts.HVT else ("--config", words[1])
    values = facts.published(asked, script) | facts.typed_options(old)
    assert facts.differences(values, printed).items() <= facts.allowed_deviations(asked).items()
    assert printed["head_dropout"] == facts.HEAD_DROPOUT.get(name)
    assert printed["data_dir"] in ("DIR", "CIFAR100")
    assert printed["model_kwargs"].items() >= SMALL[name[:3]].items()


CROPS = {"SoT": 0.875, "So_": 0.875, "hvt": 0.875, "lvv": 0.9}


@pytest.mark.parametrize("old, new", EVALUATIONS)
def test_a_published_command_prints_the_published_evaluation(old, new, folder, monkeypatch, capsys):
    monkeypatch.chdir(folder)
    _, words = parts(new)
    (file,) = CHECKPOINTS.keys() & set(words)
    name = CHECKPOINTS[file][0]
    program = validate if "validate.py" in new else train
    program.main([*words, "--model-kwargs", *small(name), "--dry-run", *QUICK])
    printed = printed_options(capsys.readouterr().out)
    data = printed["data_config"]
    assert (data["crop_pct"], data["interpolation"]) == (CROPS[name[:3]], "bicubic")
    assert data["input_size"] == [3, *2 * [384 if "384" in file else 224]]
    assert printed["recipe"]["num_classes"] == 1000
    if "--b" in old:  # the others leave it to the program, and it has no influence on an evaluation
        assert printed["batch_size"] == 256


def test_there_are_all_of_them():
    assert (len(TRAININGS), len(EVALUATIONS)) == (20, 6)


SHORT = ("--max-steps", "1", "--epochs", "2", "--cooldown-epochs", "0")
ONE_STEP = {
    **{f"--config {path}": "--img-size 96 --lr-base-size 2" for path in facts.HVT_FILES},
    "--model SoT_Tiny -b 1024 --lr 1e-3 --weight-decay 3e-2 --img-size 224 --amp": "--img-size 32",
    "--model lvvit_s -b 128 --apex-amp --img-size 224 --drop-path 0.1 --token-label --token-label-data LABELS "
    "--token-label-size 14 --model-ema": "--img-size 32 --token-label-size 2",
}


@pytest.mark.parametrize("command", ONE_STEP, ids=lambda command: shlex.split(command)[1].rpartition("/")[2])
def test_one_step_on_small_images(folder, tmp_path, monkeypatch, capsys, command):
    """They print the published options, except for small images and batches (4 for 2 as 1,024 for 512) and one step."""
    monkeypatch.chdir(folder)
    words = [*shlex.split(command), *shlex.split(ONE_STEP[command])]
    output = ["--output", str(tmp_path), "--experiment", "run", "-b", "4", *SHORT, *QUICK]
    train.main(["--data-path", "DIR", *words, *output, "--dry-run"])
    printed = printed_options(capsys.readouterr().out)
    name = model_of(words)
    script = facts.SCRIPTS[next(asked for asked in facts.SCRIPTS if asked[1].startswith(name[:3]))][0]
    asked = ("--config", words[1]) if script == facts.HVT else ("typed", name)
    values = facts.published(asked, script) | facts.typed_options(command)
    found = facts.differences(values, printed)
    changed = {"--batch-size", "--epochs", "--cooldown-epochs", "--warmup-epochs", "--img-size", "--input_size"}
    assert {option: value for option, value in found.items() if option not in changed}.items() <= (
        facts.allowed_deviations(asked).items()
    )
    train.main(["--data-path", "DIR", *words, *output])
    checkpoint = load(tmp_path / "run")
    used = checkpoint["options"]
    assert {key for key in used if used[key] != printed[key]} <= {"dry_run", "config"}
    assert checkpoint["progress"]["updates"] == 1
    assert ("state_dict_ema" in checkpoint) is checkpoint["options"]["model_ema"] is True


@pytest.mark.parametrize("path", facts.HVT_FILES, ids=lambda path: path.stem)
def test_a_whole_hvt_file_evaluates_a_checkpoint(path, folder, tmp_path, monkeypatch, capsys):
    """A classifier that always says the third class is right for a third of the images."""
    monkeypatch.chdir(folder)
    sizes = {key: value for key, value in json.loads(path.read_text()).items() if key in HVT_SIZES}
    model = timm.create_model("hvt", num_classes=3, img_size=96, **{**sizes, "num_heads": 1, "head_dim": 8})
    torch.nn.init.zeros_(model.head.word_fc.weight)
    model.head.word_fc.bias.data = torch.tensor([1.0, 2.0, 3.0])
    torch.save({"model": hvt_names(model)}, tmp_path / "hvt.pth")
    words = ["--config", str(path), "--model-kwargs", "num_heads=1", "head_dim=8", "--img-size", "96", *QUICK]
    train.main([*words, "--data-set", "IMNET", "--data-path", "DIR", "--eval", "--resume", str(tmp_path / "hvt.pth")])
    out = capsys.readouterr().out
    assert "6 images, raw weights" in out
    assert "top-1 33.33 %" in out


PROGRAMS = r"distributed_train|main\.py|eval\.sh|scripts/|dist_test|model_name"
PLACEHOLDER = re.compile(r"\$|path/to|model_name|PATH|DIR")


def seed_commands():
    """The training and evaluation commands of the published READMEs, as lists of words."""
    text = "\n".join(path.read_text(encoding="utf-8") for path in sorted(need_shared("seeds").glob("*.md")))
    text = re.sub(r"\\\n", " ", text).replace("[--aug-test]", "")
    lines = re.findall(
        rf"^(?:CUDA_VISIBLE_DEVICES=\S+ )?((?:\./|sh |bash |python ).*(?:{PROGRAMS}).*)$", text, re.MULTILINE
    )
    return [line.split(" # ")[0].replace("[path/to/", "path/to/").split() for line in lines if "run_glue" not in line]


def test_every_command_of_the_readmes_is_in_the_migration():
    """A placeholder ($NAME, path/to/x, model_name) stands for any word."""
    cells = [old.strip(" `").split() for old, _ in rows(MIGRATION)]
    commands = seed_commands()
    assert len(commands) == 18
    for command in commands:
        alike = [
            cell
            for cell in cells
            if len(cell) == len(command)
            and all(PLACEHOLDER.search(word) or word == ours for word, ours in zip(command, cell, strict=True))
        ]
        assert alike, command
