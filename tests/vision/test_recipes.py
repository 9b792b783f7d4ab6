"""Recipes: what a published model's name brings along, option by option as published, and what comes first."""

import json
import logging
from fnmatch import fnmatchcase

import pytest
import torch
import yaml

from sot_base.errors import UsageError
from tests.support import GOLDEN, need_shared
from tests.vision import published_recipes as facts
from tests.vision.conftest import load, make_split, printed_options
from tests.vision.data.test_sources import cifar_files
from tests.vision.test_docs import save_label_maps, save_published
from vision import train, validate
from vision.cli.config_file import CONFIG_FOLDER, parse_args, read_yaml
from vision.cli.hvt_files import HVT_SIZES
from vision.cli.recipes import find_recipe
from vision.cli.train_options import train_parser
from vision.predict import predict_parser
from vision.validate import validate_parser

HVT_FILES = {path.name: path for path in facts.HVT_FILES}
QUICK = ("--device", "cpu", "-j", "0")


def parse(*words):
    return parse_args(train_parser(), ["DIR", *map(str, words)])


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A reader's folder: images, label maps, CIFAR's files, HVT's whole files."""
    root = tmp_path_factory.mktemp("reader")
    for split in ("train", "val"):
        make_split(root / "DIR" / split, count=2)
    save_label_maps(root / "LABELS", root / "DIR")
    (root / "CIFAR100").mkdir()
    cifar_files(root / "CIFAR100", "cifar100")
    return root


class TestFacts:
    def test_the_copies_are_the_shared_facts(self):
        shared = need_shared("reference", "recipes")
        for path in [*(GOLDEN / "recipes").glob("*.json"), *facts.HVT_FILES]:
            same = shared / path.relative_to(GOLDEN / "recipes")
            assert json.loads(path.read_text()) == json.loads(same.read_text())
        assert len(HVT_FILES) == 5

    @pytest.mark.parametrize("words", facts.SCRIPTS, ids=lambda words: words[1].rpartition("/")[2])
    def test_every_option_is_the_published_one(self, words):
        found = facts.deviations(words, *facts.SCRIPTS[words])
        assert found.items() <= facts.allowed_deviations(words).items()

    def test_every_deviation_is_one(self):
        found = [(words, facts.deviations(words, *script)) for words, script in facts.SCRIPTS.items()]
        for pattern, option in facts.DEVIATIONS:
            hits = [words for words, differ in found if option in differ and fnmatchcase(" ".join(words), pattern)]
            assert hits, (pattern, option)

    @pytest.mark.parametrize("words", facts.SCRIPTS, ids=lambda words: words[1].rpartition("/")[2])
    def test_ours_have_no_options_of_their_own(self, words):
        known = {facts.name_here(option) for option in facts.DEFAULTS[facts.SCRIPTS[words][0]]}
        recipe = read_yaml(CONFIG_FOLDER / f"{parse(*words).train_recipe}.yaml")
        assert recipe.keys() - known - {"model"} <= facts.OURS_ALONE.keys()

    @pytest.mark.parametrize("model", ["SoT_Tiny", "SoT_Small", "SoT_Base", "So_vit_7", "So_vit_14", "So_vit_19"])
    def test_head_dropout(self, model):
        assert parse("--model", model).head_dropout == facts.HEAD_DROPOUT.get(model)

    @pytest.mark.parametrize("path", facts.HVT_FILES, ids=lambda path: path.stem)
    def test_every_key_of_an_hvt_file(self, path):
        args, file = parse("--config", path), json.loads(path.read_text())
        assert (args.model, args.experiment, args.workers) == ("hvt", file["exp_name"], file["num_workers"])
        assert (args.batch_size, args.img_size, args.weight_decay) == (128, 224, 0.025)
        sizes = file.keys() & HVT_SIZES
        assert len(sizes) == 7
        assert args.model_kwargs == {name: file[name] for name in sizes}

    @pytest.mark.parametrize("size, others", [("m", ["384", "448"]), ("l", ["448", "512"]), ("s", ["384"])])
    def test_fine_tuning_is_the_readmes_command(self, size, others):
        for pixels in others:
            args = facts.options(("--config", f"lvvit_{size}_finetune_{pixels}", "--token-label-data", "LABELS"), 8)
            assert (args.model, args.img_size) == (f"lvvit_{size}_{pixels}", int(pixels))
            assert (args.lr, args.min_lr, args.weight_decay, args.batch_size) == (5e-6, 5e-6, 1e-8, 64)
            assert (args.dense_weight, args.model_ema, args.amp, args.reprob) == (1.0, False, True, 0.25)
            assert args.drop_path == facts.published(("--config", f"lvvit_{size}"), facts.LVVIT)["--drop-path"]


class TestWhatComesFirst:
    def test_the_command_line(self):
        args = parse("--model", "sot_small", "--no-model-ema", "--mixup", 0, "--aa", "none", "--head-dropout", 0.1)
        assert (args.model_ema, args.mixup, args.aa, args.head_dropout, args.cutmix) == (False, 0, "", 0.1, 1.0)

    @pytest.mark.parametrize("given, other", [("lr", "lr_base"), ("lr_base", "lr")])
    def test_a_learning_rate_of_either_kind(self, given, other):
        for model in ("sot_tiny", "hvt_tiny_1"):
            args = vars(parse("--model", model, f"--{given.replace('_', '-')}", 0.25))
            assert (args[given], args[other]) == (0.25, None)

    def test_a_file(self, tmp_path):
        path = tmp_path / "mine.yaml"
        path.write_text("model: So_vit_14\nlr_base: 0.5\nmodel-ema: false\nseed: 7\n")
        args = parse("--config", path, "--seed", 8)
        assert (args.train_recipe, args.lr, args.lr_base, args.seed) == ("so_vit_14", None, 0.5, 8)
        assert (args.model_ema, args.weight_decay, args.head_dropout) == (False, 0.05, 0.5)

    def test_short_trainings_have_a_short_warm_up(self):
        assert parse("--model", "sot_tiny").warmup_epochs == 5
        assert parse("--model", "sot_tiny", "--epochs", 3).warmup_epochs is None
        assert facts.options(("--model", "sot_tiny", "--epochs", "3"), 1).warmup_epochs == 0.3

    def test_token_labeling_is_left_out_without_it(self):
        assert parse("--model", "lvvit_s").dense_weight is None
        assert parse("--model", "lvvit_s", "--token-label").dense_weight == 1.0
        assert parse("--config", "lvvit_s", "--no-token-label").dense_weight is None

    @pytest.mark.parametrize("model", ["sot_micro", "deit_tiny_sot", "swin_tiny_sot", "resnet18"])
    def test_other_models_have_none(self, model):
        assert find_recipe(model) == "none"
        args = parse("--model", model)
        assert (args.train_recipe, args.mixup, args.model_ema, args.seed) == ("none", 0, False, 42)

    def test_recipe_none_and_another(self):
        plain = vars(parse("--model", "resnet18"))
        without = vars(parse("--model", "SoT_Base", "--recipe", "none"))
        assert without == {**plain, "model": "SoT_Base"}
        other = parse("--model", "resnet18", "--recipe", "sot_tiny")
        assert (other.model, other.train_recipe, other.mixup) == ("resnet18", "sot_tiny", 0.8)
        assert parse("--recipe", "hvt").model == "hvt_tiny_1"
        with pytest.raises(UsageError, match="no such configuration: sot_huge; give a file, or one of"):
            parse("--model", "resnet18", "--recipe", "sot_huge")

    def test_the_saved_options_of_a_run_stand_alone(self, tmp_path):
        path = tmp_path / "options.yaml"  # of a run before there were recipes
        path.write_text("model: sot_tiny\ndry_run: false\nmixup: 0.0\n")
        args = parse("--config", path)
        assert (args.train_recipe, args.cutmix, args.drop_path) == ("none", 0, None)


TINY = ("--img-size", "32", "--model-kwargs", "depth=1", "embed_dim=24", "num_heads=2", "-b", "4", "--no-amp", *QUICK)
SHORT = ("--max-steps", "1", "--epochs", "2", "--cooldown-epochs", "0")


def test_the_log_says_so_and_how_to_train_without(folder, monkeypatch, caplog):
    monkeypatch.chdir(folder)
    for words, said in (((), 1), (("--recipe", "none"), 0)):
        caplog.clear()
        with caplog.at_level(logging.INFO, "vision"):
            train.main(["DIR", "--model", "SoT_Tiny", "--dry-run", *TINY, *words])
        lines = [line for line in caplog.messages if line.startswith("recipe")]
        assert len(lines) == said
        assert all("recipe sot_tiny" in line and "--recipe none" in line for line in lines)


def test_a_dry_run_says_what_the_recipe_has(folder, monkeypatch, capsys):
    monkeypatch.chdir(folder)
    words = ["DIR", "--model", "SoT_Tiny", "--dry-run", *TINY, "--lr", "2e-3", "--no-model-ema", "--mixup", "0.8"]
    train.main(words)
    out = capsys.readouterr().out
    noted = [line for line in out.splitlines() if "#" in line]
    assert len({line.index("#") for line in noted}) == 1
    notes = {line.split(":")[0]: line.split("#")[1].strip() for line in noted}
    recipe = read_yaml(CONFIG_FOLDER / "sot_tiny.yaml")
    assert notes.keys() == recipe.keys() - {"model"}
    assert {name: note for name, note in notes.items() if note != "recipe"} == {
        **{"batch_size": "recipe: 128", "img_size": "recipe: 224", "lr": "recipe: 0.001"},
        **{"amp": "recipe: true", "model_ema": "recipe: true"},
    }
    assert printed_options(out)["model_ema"] is False
    train.main([*words, "--recipe", "none"])
    assert "#" not in capsys.readouterr().out


class TestResuming:
    """A run goes on with the recipe that it began with, or none."""

    def start(self, tmp_path, folder, monkeypatch, *words):
        monkeypatch.chdir(tmp_path)
        self.words = [str(folder / "DIR"), "--model", "SoT_Tiny", *TINY, "--experiment", "run", "--epochs", "2"]
        train.main([*self.words, "--max-steps", "1", "--checkpoint-steps", "1", *words])
        self.file = tmp_path / "out" / "train" / "run" / "last.pth.tar"
        return torch.load(self.file, weights_only=True)

    def resume(self, *words):
        train.main([*self.words, "--resume", "--max-steps", "3", *words])
        return load(self.file.parent)["options"]

    def test_of_a_run_from_before_there_were_recipes(self, tmp_path, folder, monkeypatch):
        checkpoint = self.start(tmp_path, folder, monkeypatch, "--recipe", "none")
        del checkpoint["options"]["train_recipe"]
        torch.save(checkpoint, self.file)
        options = self.resume()
        assert (options["train_recipe"], options["mixup"], options["model_ema"]) == ("none", 0, False)
        assert options["drop_path"] is None

    def test_of_a_run_without_one(self, tmp_path, folder, monkeypatch):
        self.start(tmp_path, folder, monkeypatch, "--recipe", "none")
        assert self.resume()["train_recipe"] == "none"

    def test_of_a_run_with_one(self, tmp_path, folder, monkeypatch):
        saved = self.start(tmp_path, folder, monkeypatch)["options"]
        options = self.resume()
        assert options["train_recipe"] == "sot_tiny"
        assert {key for key in saved if saved[key] != options[key]} <= {"resume", "max_steps", "checkpoint_steps"}
        text = yaml.safe_load((self.file.parent / "options.yaml").read_text())
        assert text["train_recipe"] == "sot_tiny"
        again = vars(parse("--config", self.file.parent / "options.yaml"))
        assert {key for key in text if key in again and again[key] != text[key]} <= {"data_dir"}


class TestHvtFiles:
    @pytest.fixture(scope="class")
    def checkpoint(self, tmp_path_factory):
        path = tmp_path_factory.mktemp("hvt") / "hvt_s_1.pth"
        save_published("hvt_small_1", path)
        return str(path)

    @pytest.mark.parametrize("name", HVT_FILES)
    def test_cifar(self, folder, monkeypatch, capsys, name):
        monkeypatch.chdir(folder)
        words = ["--config", str(HVT_FILES[name]), "--data-set", "CIFAR", "--data-path", "CIFAR100", "--img-size", "96"]
        train.main([*words, "--dry-run", *QUICK])
        options = printed_options(capsys.readouterr().out)
        assert (options["weight_decay"], options["experiment"]) == (0.025, name.removesuffix(".json"))

    def test_evaluation(self, folder, monkeypatch, checkpoint, tmp_path):
        """The 1,000 classes of the checkpoint are numbered: the images' are not its, which one line says."""
        monkeypatch.chdir(folder)
        words = ["--config", str(HVT_FILES["hvt-s-1.json"]), "--data-set", "IMNET", "--data-path", "DIR", *QUICK]
        with pytest.raises(UsageError, match="class"):
            train.main([*words, "--eval", "--resume", checkpoint])
        with pytest.raises(UsageError, match="class"):
            validate.main([*words, "--checkpoint", checkpoint])

    def test_validation_has_nothing_of_training(self):
        args = parse_args(validate_parser(), ["--config", str(HVT_FILES["hvt-ti-1.json"]), "--data-path", "DIR"])
        assert (args.model, args.data_dir, args.img_size, args.batch_size) == ("hvt", "DIR", 224, 128)
        assert not {"weight_decay", "experiment"} & vars(args).keys()


class TestModelOfValidation:
    @pytest.mark.parametrize("words", [["DIR", "lvvit_s"], ["DIR", "--model", "lvvit_s"], ["--model=lvvit_s", "DIR"]])
    def test_either_spelling(self, words):
        args = parse_args(validate_parser(), words)
        assert (args.data_dir, args.model) == ("DIR", "lvvit_s")
        assert "model_name" not in vars(args)

    def test_one_of_them(self):
        with pytest.raises(UsageError, match="the model is named twice: lvvit_s and --model lvvit_m; give one"):
            parse_args(validate_parser(), ["DIR", "lvvit_s", "--model", "lvvit_m"])

    def test_it_is_evaluated(self, folder, monkeypatch, capsys, tmp_path):
        monkeypatch.chdir(folder)
        train.main(["DIR", *TINY, *SHORT, "--output", str(tmp_path), "--experiment", "run", "--model", "sot_micro"])
        words = ["--checkpoint", str(tmp_path / "run" / "last.pth.tar"), "--model", "sot_micro", *QUICK]
        capsys.readouterr()
        validate.main(["DIR", *words])
        assert "6 images" in capsys.readouterr().out

    def test_prediction_has_it_too(self):
        assert parse_args(predict_parser(), ["a.jpg", "--model", "lvvit_s"]).model == "lvvit_s"
