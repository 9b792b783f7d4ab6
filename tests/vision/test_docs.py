"""docs/vision.md and docs/migration.md: their commands run, on small data; every option is in them."""

import argparse
import json
import re
import shlex
import shutil

import numpy as np
import pytest
import timm
import torch

from sot_core import Classifier, OnlyVisualTokensClassifier
from tests.support import REPOSITORY, need_shared
from tests.vision.conftest import make_image, make_split, printed_options
from tests.vision.data.test_sources import cifar_files
from tests.vision.golden import golden_model
from tests.vision.models.test_hvt import published_names as hvt_names
from tests.vision.models.test_lvvit import published_names as lvvit_names
from tests.vision.models.weights.test_published_names import published_names
from tests.vision.segment.conftest import make_set
from tests.vision.segment.mmseg import mmseg_state
from vision import TokenEmbed, check_data, predict, summary, train, validate
from vision.cli.train_options import train_parser
from vision.data.classes import imagenet_a_names
from vision.data.sources import open_source
from vision.predict import predict_parser
from vision.segment import validate as validate_segments
from vision.token_label.read_maps import LabelMap
from vision.token_label.write_maps import write_label_maps
from vision.validate import validate_parser

PROGRAMS = {"train": train, "validate": validate, "predict": predict, "check_data": check_data, "summary": summary}
PROGRAMS["segment/validate"] = validate_segments
VISION, MIGRATION = (
    (REPOSITORY / "docs" / f"{name}.md").read_text(encoding="utf-8") for name in ("vision", "migration")
)
COMMAND = re.compile(r"^(?:python|torchrun --nproc_per_node \d+) (?:-m vision\.|vision/)([\w/]+)(?:\.py)? ?(.*)$")


def commands(text):
    """The commands in the blocks of a document, in their order."""
    blocks = re.findall(r"^```bash\n(.*?)^```", text, flags=re.MULTILINE | re.DOTALL)
    return [line for block in blocks for line in block.splitlines()]


def rows(text):
    """Pairs of the old and new command in the tables of a document."""
    cells = [line.split(" | ") for line in text.splitlines() if line.startswith("| `")]
    return [(old.strip("| "), new.strip(" |").removesuffix("`").removeprefix("`")) for old, new in cells]


def run(command, *more):
    """Run a documented command in this process, with further words; processes of torchrun become one."""
    program, words = COMMAND.match(command).groups()
    return PROGRAMS[program].main([*shlex.split(words), *more])


def save_published(model_name, path):
    rename = {"hvt": hvt_names, "lvv": lvvit_names}.get(model_name[:3], published_names)
    torch.save({"arch": model_name, "state_dict": rename(timm.create_model(model_name))}, path)


def save_label_maps(folder, data):
    """Maps of 4x4 places for the training images of a folder, of its classes."""
    source = open_source(str(data), "train")
    files = [source.key(index) for index in range(len(source.targets))]
    with write_label_maps(folder, source.class_names, files, (4, 4), 1) as writer:
        for index, label in enumerate(source.targets.tolist()):
            writer.put(index, LabelMap(torch.full((1, 4, 4), 9.0), torch.full((1, 4, 4), label)))


def save_hvt_configs(folder):
    for name in ("hvt-ti-1", "hvt-s-1", "scale-hvt-ti-4"):
        (folder / f"{name}.json").write_text(json.dumps(golden_model(name)["config"]))


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Where the reader stands: a folder of flowers, photographs and CIFAR's files."""
    root = tmp_path_factory.mktemp("reader")
    for split in ("train", "val"):
        make_split(root / "flowers" / split, ["rose", "tulip"], count=3)
    make_split(root / "photos", ["holiday"], count=2)
    make_image(0, 0).save(root / "photo.jpg")
    (root / "cifar10").mkdir()
    cifar_files(root / "cifar10", "cifar10")
    save_published("So_vit_7", root / "So-ViT-7.pth.tar")
    return root


@pytest.fixture(scope="module")
def imagenet(tmp_path_factory):
    """Four photographs in ImageNet's layout, those of ImageNet-A's classes apart, and published checkpoints."""
    root = tmp_path_factory.mktemp("imagenet")
    for image in sorted(need_shared("data", "imagenet_samples").glob("*.JPEG"))[:4]:
        synset = image.name.split("_")[0]
        for target in ("DIR/train", "DIR/val", *(["IMAGENET_A"] if synset in imagenet_a_names() else [])):
            (root / target / synset).mkdir(parents=True)
            shutil.copy(image, root / target / synset)
    for name, link in (("DIR", "imagenet"), ("IMAGENET_A", "imagenet-a")):
        (root / link).symlink_to(root / name)
    save_published("SoT_Tiny", root / "SoT_Tiny.pth.tar")
    save_published("So_vit_7", root / "So-ViT-7.pth.tar")
    save_published("hvt_small_1", root / "hvt_s_1.pth")
    save_published("lvvit_s", root / "lvvit_s-26M-224-83.3.pth.tar")
    save_published("lvvit_s_384", root / "lvvit_s-26M-384-84.4.pth.tar")
    save_label_maps(root / "LABELS", root / "DIR")
    make_set(root / "ADE20K", {"validation": 1})
    sizes = {"width": 384, "depth": 16, "channels": 256, "last": 2048, "classes": 150, "grid": 32, "stem": 64}
    torch.save({"state_dict": mmseg_state(**sizes)}, root / "upernet_lvvit_s.pth")
    for folder, write in (("config", save_hvt_configs), ("CIFAR100", lambda path: cifar_files(path, "cifar100"))):
        (root / folder).mkdir()
        write(root / folder)
    return root


def cached(folder, name):
    """Where a released LV-ViT would lie after its download."""
    path = folder / "cache/vision/github.com/zihangJiang/TokenLabeling/releases/download" / name
    path.parent.mkdir(parents=True, exist_ok=True)
    return path


def test_commands_of_the_own_folder(folder, monkeypatch, capsys):
    """In their order, for the later ones read what the first ones write; training is cut to one update."""
    monkeypatch.chdir(folder)
    monkeypatch.setenv("SOT_CACHE", str(folder / "cache"))
    save_published("lvvit_s_384", cached(folder, "1.0/lvvit_s-26M-384-84.4.pth.tar"))
    found = [command for command in commands(VISION) if "flowers" in command]
    assert len(found) == 14
    for command in found:
        dry = any(part in command for part in ("resnet", "torchrun", "--initial-checkpoint", "--pretrained"))
        short = ["--max-steps", "1", "--device", "cpu", "-j", "0"]
        more = {"train": ["--dry-run", *short[2:]] if dry else short, "check_data": ["-j", "0"]}
        assert not run(command, *more.get(COMMAND.match(command)[1], ["--device", "cpu", "-j", "0"])), command
    assert {"classes.csv", "confusion.png", "photos.json"} <= {path.name for path in folder.iterdir()}
    out = capsys.readouterr().out
    assert "all 12 images can be read" in out
    assert "top-1" in out


def test_commands_for_cifar(folder, monkeypatch, capsys):
    monkeypatch.chdir(folder)
    found = [command for command in commands(VISION) if "train.py cifar10" in command]
    assert len(found) == 3
    for command in found:
        run(command, "--dry-run", "-j", "0", "--device", "cpu")
        assert "loss of the first 4 images" in capsys.readouterr().out


def test_every_command_is_in_one_of_these_tests():
    rest = [line for line in commands(VISION) if not re.search("flowers|train.py cifar10|imagenet", line)]
    assert rest == ["python vision/train.py"]  # tests/vision/test_commands.py


def test_the_readmes_commands_are_among_them():
    readme = (REPOSITORY / "README.md").read_text(encoding="utf-8")
    found = [line.split("  #")[0].rstrip() for line in commands(readme) if COMMAND.match(line) and "vision" in line]
    assert len(found) == 3
    assert all(any(longer.startswith(command) for longer in commands(VISION)) for command in found)


def dry_run(command, capsys):
    """What a command prints with --dry-run; validation still sees that the labels fit."""
    more = ["--dry-run", "--device", "cpu", "-j", "0"]
    if "--real-labels" in command:  # wants all 50,000 images
        command = command.replace("--real-labels", "")
    if "upernet" in command:  # several scales of the full size take minutes
        more += ["--short-side", "96"]
    run(command, *more)
    out = capsys.readouterr().out
    loss = float(re.search(r"loss of the first \d images: (\S+)\n$", out)[1])
    assert np.isfinite(loss)
    return out


def test_commands_for_imagenet(imagenet, monkeypatch, capsys):
    monkeypatch.chdir(imagenet)
    monkeypatch.setenv("SOT_CACHE", str(imagenet / "cache"))
    released = "lvvit_s-26M-224-83.3.pth.tar"
    shutil.copy(imagenet / released, cached(imagenet, f"1.0/{released}"))
    found = [command for command in commands(VISION) if "imagenet" in command]
    assert len(found) == 12
    for command in found:
        out = dry_run(command, capsys)
        if "-b 1024" in command:
            options = printed_options(out)
            assert (options["train_recipe"], options["batch_size"], options["lr"]) == ("sot_tiny", 1024, 0.001)


COMMANDS = [new for _, new in rows(MIGRATION) if COMMAND.match(new)]


@pytest.mark.slow
@pytest.mark.parametrize("command", COMMANDS)
def test_rows_of_the_migration(imagenet, monkeypatch, capsys, command):
    monkeypatch.chdir(imagenet)
    options = printed_options(dry_run(command, capsys))
    for option, name in (
        ("-b", "batch_size"),
        ("--b", "batch_size"),
        ("--lr", "lr"),
        ("--min-lr", "min_lr"),
        ("--drop-path", "drop_path"),
        ("--img-size", "img_size"),
        ("--token-label-size", "token_label_size"),
        ("--dense-weight", "dense_weight"),
        ("--num-classes", "num_classes"),
        ("--weight-decay", "weight_decay"),
    ):
        given = re.search(rf" {option} (\S+)", command)
        if given:
            assert options[name] == float(given[1])
    assert options["amp"] or "amp" not in command
    assert list(imagenet.glob("out")) == []


def test_python_of_the_migration():
    names = {"timm": timm}
    config = {"dim": 32, "num_heads": 2, "wr_dim": 4, "normalization": {"type": "svPN", "alpha": 0.5, "input_dim": 4}}
    names["representationConfig"] = {"type": "MGCrP", "args": {**config, "dim": 256}}
    names["classification_head_config"] = {"type": "MGCrP", "fusion_type": "sum_fc", "args": config}
    names["patch_embed_config"] = {"type": "DenseNet", "embedding_dim": 64, "large_output": False}
    found = [new for _, new in rows(MIGRATION) if not COMMAND.match(new) and new != "not needed"]
    assert len(found) == 7
    made = []
    for code in found:
        code = code.split("`")[0]
        exec(code, names) if code.startswith("from") else made.append(eval(code, names))
    classifier, published_call, words_only, embed, model = made
    assert isinstance(published_call, Classifier)
    assert isinstance(classifier, Classifier)
    assert isinstance(words_only, OnlyVisualTokensClassifier)
    assert isinstance(embed, TokenEmbed)
    assert model.num_classes == 1000


def test_examples_of_python(monkeypatch):
    (example,) = re.findall(r"^```python\n(.*?)^```", VISION, flags=re.MULTILINE | re.DOTALL)
    names = {}
    exec(example, names)
    assert names["logits"].shape == (2, 10)


def test_every_option_is_documented():
    parsers = {"T": train_parser(), "V": validate_parser(), "P": predict_parser()}
    table = VISION[VISION.index("## Options") :]
    for letter, parser in parsers.items():
        for action in parser._actions:
            if isinstance(action, argparse._HelpAction) or action.help == argparse.SUPPRESS:
                continue
            for flag in action.option_strings:
                if not re.match("--no-(native|apex)", flag):
                    lines = [line for line in table.splitlines() if re.search(rf"`[^`]*{flag}(?![\w-])[^`]*`", line)]
                    assert lines, flag
                    of = [line.split(" | ")[1] for line in lines if line.count(" | ") == 2]
                    assert not of or any(letter in word for word in of), (flag, letter)


def test_options_in_the_table_exist():
    known = {
        flag
        for parser in (train_parser(), validate_parser(), predict_parser())
        for flag in parser._option_string_actions
    }
    table = VISION[VISION.index("## Options") :]
    assert set(re.findall(r"(?<![\w-])--[a-zA-Z][\w-]+", table)) - known == {"--depth"}


def test_the_table_of_sizes_is_the_summarys(capsys):
    assert summary.main([]) == 0
    lines = [line.split() for line in capsys.readouterr().out.splitlines()]
    found = {line[0]: (line[1], line[2], line[-1]) for line in lines if line and f"| `{line[0]}` |" in VISION}
    assert len(found) == 29
    for name, (params, trainable, activations) in found.items():
        assert re.search(rf"^\| `{name}` \| {params} \({trainable}\) \|.*\| {activations} \|$", VISION, re.MULTILINE)
