"""The recipe that the scripts train with, and the YAML files that say the same to hydra."""

import argparse
import re

import pytest
from fairseq import options
from fairseq.dataclass.initialize import add_defaults, hydra_init
from fairseq.dataclass.utils import convert_namespace_to_omegaconf
from fairseq.models import ARCH_CONFIG_REGISTRY
from hydra import compose, initialize_config_dir
from omegaconf import OmegaConf

from sot_base.errors import UsageError
from sot_fairseq.data.header import DataHeader, SplitCounts
from sot_fairseq.encoders import Encoder
from sot_fairseq.runs.recipe import parse_recipe_options, schedule, train_command
from sot_text.glue import GLUE_TASKS
from sot_text.hyperparameters import get_hyperparameters
from tests.support import REPOSITORY

CONFIG_DIR = REPOSITORY / "sot_fairseq" / "config"


def script_name(task):
    return task.lower().replace("-", "")


def test_schedule_and_words():
    values = get_hyperparameters("RTE", "roberta.base")
    assert schedule(2490, values) == (1560, 93)  # 156 batches of 16 in an epoch
    assert schedule(2490, values, 4) == schedule(2490, values, 2, 2) == (390, 23)
    found = parse_recipe_options(["--fp16", "--max-epoch=3", "--max-sentences", "8", "--update-freq", "2", "--x", "-1"])
    assert (found.max_epoch, found.batch_size, found.update_freq, found.freeze_backbone) == (3, 8, 2, False)
    for words in (["--batch-size", "many"], ["--max-epoch", "0"]):
        with pytest.raises(UsageError, match=words[0]):
            parse_recipe_options(words)


def yaml_rows(task):
    text = (CONFIG_DIR / f"{script_name(task)}.yaml").read_text(encoding="utf-8")
    return int(re.search(r"the ([\d,]+) training rows", re.sub("\n# ", " ", text))[1].replace(",", ""))


def command_line(task):
    """The script's words for roberta.base on GLUE's own files, with the YAML file's paths."""
    glue = GLUE_TASKS[task]
    rows = SplitCounts("train.tsv", yaml_rows(task), True, 0, 0, 0, 0)
    inputs = (glue.labels, glue.regression, glue.label_range, glue.metrics, glue.main_metric, glue.num_inputs)
    header = DataHeader(task, *inputs, "gpt2", None, "vocab.bpe", "", 0, 2, None, {"train": rows})
    sizes = ["--encoder-layers", "12", "--encoder-embed-dim", "768", "--encoder-ffn-embed-dim", "3072"]
    arch = ["--arch", "roberta_base", *sizes, "--encoder-attention-heads", "12", "--max-positions", "512"]
    encoder = Encoder("gpt2", CONFIG_DIR, CONFIG_DIR, "roberta.base/model.pt", arch)
    values = get_hyperparameters(task, "roberta.base")
    save_dir = f"{script_name(task)}-run"
    return train_command(f"{task}-bin", header, encoder, values, "mgcrp", 1, save_dir)


def resolve_command_line(words):
    args = options.parse_args_and_arch(options.get_training_parser(), words[1:])
    cfg = convert_namespace_to_omegaconf(args)
    model = vars(cfg.model)
    return OmegaConf.to_container(cfg) | {"model": None, "scoring": None}, model  # scoring is of generated text


def resolve_hydra(name, user_dir, *more):
    """As fairseq_cli.hydra_train does it."""
    hydra_init(name)
    with initialize_config_dir(config_dir=str(CONFIG_DIR)):
        cfg = compose(name, overrides=[f"common.user_dir={user_dir}", *more])
    add_defaults(cfg)
    tree = OmegaConf.to_container(cfg, resolve=True, enum_to_str=True)
    model = argparse.Namespace(**tree["model"], max_positions=tree["task"]["max_positions"])
    ARCH_CONFIG_REGISTRY[model._name](model)  # as the task does when it builds the model
    return tree | {"model": None, "scoring": None}, vars(model)


@pytest.mark.filterwarnings("ignore::UserWarning")  # hydra's, on how fairseq uses it
@pytest.mark.parametrize("task", GLUE_TASKS)
def test_hydra_and_command_line_resolve_to_the_same_settings(task):
    words = command_line(task)
    expected, expected_model = resolve_command_line(words)
    tree, model = resolve_hydra(script_name(task), words[words.index("--user-dir") + 1])
    assert tree == expected
    assert {name: expected_model[name] for name in model} == model


@pytest.mark.filterwarnings("ignore::UserWarning")
def test_options_that_are_not_in_the_yaml_files():
    words = ("+criterion.class_weights=balanced", "+task.multi_label=true", "checkpoint.patience=3")
    tree, _ = resolve_hydra("cola", str(REPOSITORY / "sot_fairseq"), *words)
    assert tree["criterion"]["class_weights"] == "balanced"
    assert tree["task"]["multi_label"] is True
    assert tree["checkpoint"]["patience"] == 3


@pytest.mark.parametrize("task", GLUE_TASKS)
def test_yaml_and_script_name_the_same_number_of_rows(task):
    comment = (REPOSITORY / "glue_scripts" / f"{script_name(task)}.sh").read_text(encoding="utf-8").split("\nTASK=")
    assert comment[1].split("\n")[0] == task
    assert f" {yaml_rows(task):,} " in comment[0]
