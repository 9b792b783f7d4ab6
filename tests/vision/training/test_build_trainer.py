"""What a trainer is put together from: options, data, model, and the checkpoint that it continues from."""

import pytest
import torch

from sot_base.errors import UsageError
from tests.vision.conftest import TINY, assert_same_state, load
from vision import train as train_module
from vision.cli.config_file import parse_args
from vision.cli.train_options import train_parser
from vision.training.build_trainer import build_trainer
from vision.training.progress import Progress


@pytest.fixture
def build(images):
    """Trainer and progress of a command."""

    def create(*words):
        args = parse_args(train_parser(), [str(images), *TINY, *map(str, words)])
        return build_trainer(train_module.open_session(args))

    return create


def test_a_new_run(build):
    trainer, progress = build("-b", 4, "--grad-accum-steps", 3, "--seed", 9)
    assert progress == Progress()
    assert (trainer.steps_per_epoch, trainer.updates_per_epoch) == (4, 2)
    assert [trainer.images_of_update(step) for step in range(4)] == [12, 12, 12, 3]
    assert [trainer.ends_update(step) for step in range(4)] == [False, False, True, True]
    assert not trainer.task.has_ema()
    assert trainer.task.erase is trainer.task.mixup is None
    images, targets = next(iter(trainer.loader))
    prepared, labels = trainer.task.prepare(images, targets)
    assert torch.equal(prepared, images)
    assert torch.equal(labels, targets)


def test_groups_of_parameters(build):
    trainer, _ = build("--weight-decay", 0.1, "--layer-decay", 0.5, "--head-lr-scale", 4, "--opt-kwargs", "eps=1e-3")
    owners = {id(parameter): group for group in trainer.optimizer.param_groups for parameter in group["params"]}
    head, stem = trainer.model.head.word_fc.weight, trainer.model.blocks[0].attn.qkv.weight
    assert owners[id(head)]["lr_scale"] == pytest.approx(4)
    assert owners[id(stem)]["lr_scale"] == pytest.approx(0.5)
    assert owners[id(head)]["weight_decay"] == 0.1
    assert owners[id(trainer.model.cls_token)]["weight_decay"] == 0
    assert {group["eps"] for group in trainer.optimizer.param_groups} == {1e-3}
    assert len(owners) == sum(parameter.requires_grad for parameter in trainer.model.parameters())


def test_the_schedule_counts_updates(build):
    trainer, _ = build("-b", 5, "--epochs", 2, "--sched", "poly", "--decay-rate", 1, "--lr", 1e-2, "--min-lr", 0)
    trainer.scheduler.step_update(3)
    assert trainer.lr == pytest.approx(1e-2 * (1 - 3 / 6))


def test_erasing_and_mixing(build):
    trainer, _ = build("--reprob", 1, "--mixup", 0.8, "--cutmix", 1, "--mixup-off-epoch", 3, "-b", 4)
    images, targets = next(iter(trainer.loader))
    mixed, soft = trainer.task.prepare(images.clone(), targets)
    assert not torch.equal(mixed, images)
    assert soft.shape == (4, 3)
    for epoch, mixing in ((2, True), (3, False)):
        trainer.task.start_epoch(epoch)
        assert trainer.task.mixup.mixup_enabled is mixing


def test_it_continues_from_a_checkpoint(images, train, build):
    folder = train(images, "--epochs", 3, "-b", 4, "--max-steps", 6, "--model-ema", "--clip-grad", 1)
    checkpoint = load(folder)
    words = ("--epochs", 3, "-b", 4, "--model-ema", "--resume", folder / "last.pth.tar")
    trainer, progress = build(*words)
    assert (progress.epoch, progress.step, progress.updates, progress.images) == (1, 2, 6, 8)
    assert [row["epoch"] for row in progress.history] == [0]  # epoch 1 is not complete
    assert_same_state(dict(trainer.model.state_dict()), checkpoint["state_dict"])
    assert_same_state(
        dict(trainer.task.get_trainable_module(ema=True).module.state_dict()), checkpoint["state_dict_ema"]
    )
    assert_same_state(trainer.optimizer.state_dict()["state"], checkpoint["optimizer"]["state"])
    assert trainer.lr == pytest.approx(checkpoint["optimizer"]["param_groups"][0]["lr"])


def test_a_checkpoint_describes_itself(images, train, build):
    trainer, progress = build("-b", 4)
    progress.updates = 17
    state = trainer.task.get_checkpoint_state()
    assert state["recipe"]["name"] == state["arch"] == "sot_micro"
    assert state["class_names"] == ["cat", "dog", "owl"]
    assert (state["images_per_step"], state["progress"]["updates"], state["amp_scaler"]) == (4, 17, {})
    assert "rank" not in state["options"]


def test_what_timm_refuses(build):
    for words, message in (
        (["--opt", "adamv"], r"^timm refuses the options: [^\n]*adamv[^\n]*; see --help$"),
        (["--opt", "adahessian"], "--opt adahessian needs second derivatives"),
        (["--aa", "rand-x9"], "^timm refuses the options: timm cannot build the augmentation"),
    ):
        with pytest.raises(UsageError, match=message):
            build(*words)
