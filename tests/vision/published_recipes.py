"""What the published trainings say, beside what ours may say instead and why."""

import json
from fnmatch import fnmatchcase

from tests.support import GOLDEN
from vision.cli.config_file import parse_args
from vision.cli.resolve_options import resolve_options
from vision.cli.train_options import train_parser

DEFAULTS = json.loads((GOLDEN / "recipes" / "published_defaults.json").read_text())
HVT_FILES = sorted((GOLDEN / "recipes" / "hvt").glob("*.json"))
HVT, LVVIT = "HVT params.py", "TokenLabeling main.py"
SOT, SO_VIT = "SoT main.py", "So-ViT main.py (first release)"
_LABELS = ("--token-label", "--token-label-data", "LABELS")

SCRIPTS = {  # our recipe, by the words that ask for it: its script and processes
    **{("--model", f"SoT_{size}"): (SOT, 8) for size in ("Tiny", "Small", "Base")},
    **{("--model", f"So_vit_{depth}"): (SO_VIT, 8) for depth in (7, 10, 14, 19)},
    **{("--model", f"lvvit_{size}", *_LABELS): (LVVIT, 8) for size in "tsml"},
    **{("--config", f"lvvit_{size}", *_LABELS): (LVVIT, 8) for size in "sml"},
    **{("--config", str(path)): (HVT, 8) for path in HVT_FILES},
    ("--model", "hvt_tiny_1"): (HVT, 8),
}

STATED = {  # what a README, a shell script or a file says before the script's default: a pattern of the words
    "* SoT_Tiny": {"--batch-size": 128, "--lr": 1e-3, "--weight-decay": 0.03, "--amp": True},
    "* SoT_Small": {"--batch-size": 128, "--lr": 1e-3, "--weight-decay": 0.03, "--amp": True},
    "* SoT_Base": {"--batch-size": 64, "--lr": 5e-4, "--weight-decay": 0.065, "--amp": True},
    "* So_vit_[17]*": {"--batch-size": 64, "--lr": 1e-3, "--weight-decay": 0.03},
    "* So_vit_1[49]": {"--batch-size": 64, "--lr": 1e-3, "--weight-decay": 0.05},
    "--model lvvit_*": {"--batch-size": 128, "--token-label": True, "--token-label-data": "LABELS"},
    "--config lvvit_*": {
        **{"--batch-size": 128, "--img-size": 224, "--amp": True, "--model-ema": True},
        **{"--token-label": True, "--token-label-data": "LABELS"},
    },
    "--config lvvit_s*": {"--drop-path": 0.1},
    "--config lvvit_m*": {"--drop-path": 0.2},
    "--config lvvit_l*": {"--drop-path": 0.3, "--lr": 1e-3, "--aa": "rand-n3-m9-mstd0.5-inc1"},
    "*hvt*": {"--batch-size": 128, "--weight-decay": 0.025, "--lr": 1e-3},  # the script's 5e-4, grown to 1024 images
}
HEAD_DROPOUT = {"SoT_Small": 0.5, "SoT_Base": 0.7, "So_vit_14": 0.5, "So_vit_19": 0.5}

DEVIATIONS = {  # by a pattern of the words and the option: what ours has, and why
    ("*So_vit*", "--amp"): (True, "mixed precision: a GPU trains twice as fast"),
    ("*lvvit*", "--checkpoint-hist"): (1, "disk: the best checkpoint and the last one are what is used later"),
    ("*[ot]*", "--sync-bn"): (True, "several processes compute what one does with the whole batch"),
}
OURS_ALONE = {  # options of our recipes that no published script has
    "head_dropout": "in the published model's file",
    "amp": "HVT's script has no such option: mixed precision, with which a GPU trains twice as fast",
    "lr_base": "HVT's learning rate for 512 images, which the published script grows itself",
    "lr_base_size": "the same",
}

RENAMED = {
    **{"--data": "data_dir", "--repeated-aug": "aug_repeats", "--input-size": "input_size", "--input_size": "img_size"},
    **{"--output_dir": "output", "--num_workers": "workers", "--native-amp": "amp", "--apex-amp": "amp"},
}
EQUAL = {  # a published value that ours leaves to timm or torch, whose default it is
    "--ratio": ("[3.0 / 4.0, 4.0 / 3.0]", None),
    "--scale": ([0.08, 1.0], None),
    "--drop": (0.0, None),
    "--repeated-aug": (True, 3),
    "--interpolation": ("", None),
    "--token-label-data": ("", None),
    "--amp": (False, None),
}
NO_COUNTERPART = {
    **dict.fromkeys(("data", "data_dir", "--data-path", "--data-set", "--dataset"), "where the data is"),
    **dict.fromkeys(("--train-split", "--val-split"), "where the data is"),
    **dict.fromkeys(("--config", "--resume", "--eval", "--eval_checkpoint", "--output", "--output_dir"), "of one run"),
    **dict.fromkeys(
        ("--initial-checkpoint", "--finetune", "--exp_name", "--start-epoch", "--start_epoch"), "of one run"
    ),
    **dict.fromkeys(("--local_rank", "--num-gpu", "--device", "--world_size", "--dist_url"), "of the processes"),
    **dict.fromkeys(("--pin-mem", "--no-pin-mem", "--no-prefetcher", "--use-multi-epochs-loader"), "of speed alone"),
    **dict.fromkeys(("--channels-last", "--torchscript", "--model-ema-force-cpu", "--log-interval"), "of speed alone"),
    **dict.fromkeys(("--save-images", "--recovery-interval", "--no-save-model"), "what is written"),
    **dict.fromkeys(("--native-amp", "--apex-amp"), "other names of --amp"),
    **dict.fromkeys(("--no-model-ema", "--no-repeated-aug"), "the same option, negated"),
    **dict.fromkeys(("--validation-batch-size-multiplier", "--tta", "--eval-metric", "--dist-eval"), "evaluation"),
    **dict.fromkeys(("--lr-noise", "--lr-noise-pct", "--lr-noise-std", "--no-resume-opt"), "off by default"),
    **dict.fromkeys(("--lr-cycle-limit", "--lr-cycle-mul", "--patience-epochs"), "of other schedules"),
    **dict.fromkeys(("--bn-tf", "--bn-momentum", "--bn-eps", "--split-bn", "--dist-bn"), "off by default"),
    **dict.fromkeys(("--aug-splits", "--jsd", "--resplit", "--drop-block", "--drop-connect"), "off by default"),
    **dict.fromkeys(("--gp", "--loss_add"), "off by default"),
    **dict.fromkeys(("--opt-betas", "--opt-eps"), "the optimizer's own, which 1e-8 is too"),
    **dict.fromkeys(("--distillation-alpha", "--distillation-tau", "--distillation-type"), "off by default"),
    **dict.fromkeys(("--teacher-model", "--teacher-path", "--inat-category"), "off by default"),
    **dict.fromkeys(("--patch_size", "--num_heads", "--head_dim", "--num_blocks"), "the model's sizes"),
    **dict.fromkeys(("--pool_kernel_size", "--pool_stride", "--pool_block_width"), "the model's sizes"),
    **dict.fromkeys(("--token-label-size", "--num-classes", "--model"), "of the model and its data"),
    **dict.fromkeys(("--workers", "--num_workers"), "as many as there are cores; no influence on the result"),
}

_PUBLISHED_OPTIONS = {option for values in DEFAULTS.values() for option in values}


def options(words, processes):
    """The options of a training that the words ask for, resolved for so many processes."""
    args = parse_args(train_parser(), words)
    args.world_size = processes
    resolve_options(args)
    return args


def published(words, script):
    """What the published training says of each option."""
    values = dict(DEFAULTS[script])
    for pattern, stated in STATED.items():
        if fnmatchcase(" ".join(words), pattern):
            values |= stated
    if script == HVT:
        values["--input-size"] = None  # ours is of three numbers; --input_size is the same
    return values


def name_here(option):
    """Our name of a published option; None where there is none."""
    return None if option in NO_COUNTERPART else RENAMED.get(option, option.lstrip("-").replace("-", "_"))


def differences(values, args):
    """The options that are not the published ones: what ours have."""
    found = {}
    for option, value in values.items():
        name = name_here(option)
        if name and args[name] != value and EQUAL.get(option) != (value, args[name]):
            found[option] = args[name]
    return found


def deviations(words, script, processes):
    """The same of the recipe that words ask for."""
    return differences(published(words, script), vars(options(words, processes)))


def typed_options(command):
    """What a published command says of the options."""
    values, words = {}, command.split()
    for word, after in zip(words, [*words[1:], "--"], strict=True):
        if word.startswith("-") and word not in ("-m", "-b"):
            values[word] = True if after.startswith("--") else _number(after)
        elif word == "-b":
            values["--batch-size"] = int(after)
    for name in ("--native-amp", "--apex-amp"):
        if values.pop(name, False):
            values["--amp"] = True
    return {name: value for name, value in values.items() if name in _PUBLISHED_OPTIONS}


def _number(text):
    try:
        return float(text)
    except ValueError:
        return text


def allowed_deviations(words):
    """The deviations that have a reason."""
    name = " ".join(words)
    return {option: ours for (pattern, option), (ours, _) in DEVIATIONS.items() if fnmatchcase(name, pattern)}
