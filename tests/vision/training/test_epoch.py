"""The loop of training, with a model of one weight, a sampler of numbers and a task that notes what it is given."""

import contextlib
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from torch import nn

from sot_base.errors import UsageError
from vision.training.epoch import train_one_epoch
from vision.training.finite import NonFiniteError
from vision.training.progress import Progress
from vision.training.task import Task
from vision.training.trainer import Trainer


class Squares(nn.Module):
    """The loss of an image of value x is (w x)^2."""

    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.tensor(1.0))

    def forward(self, x):
        return self.weight * x.flatten(1).mean(1)


class NotingTask(Task):
    def __init__(self, model):
        super().__init__(model, lambda output, target: output.square().mean(), torch.device("cpu"))
        self.draws, self.epochs, self.shares = [], [], []

    def start_epoch(self, epoch):
        self.epochs.append(epoch)

    def prepare(self, images, targets):
        self.draws.append((torch.rand(()).item(), np.random.rand()))
        return images, targets

    def share(self, count, planned):
        self.shares.append((count, planned))
        return super().share(count, planned)


class Numbers:
    """Batches of one epoch of the images 1, 2, 3, ...; those of ``bad`` are left out of their batch."""

    def __init__(self, count, batch_size, bad=(), values=None):
        self.samples_per_process, self.batch_size, self.bad, self.start = count, batch_size, set(bad), 0
        self.values = values or [float(number) for number in range(1, count + 1)]
        self.sampler = self

    def set_epoch(self, epoch, start=0):
        self.epoch, self.start = epoch, start

    def __iter__(self):
        for first in range(self.start, self.samples_per_process, self.batch_size):
            numbers = range(first, min(first + self.batch_size, self.samples_per_process))
            good = [self.values[number] for number in numbers if number not in self.bad]
            yield torch.tensor(good).view(-1, 1, 1, 1), torch.zeros(len(good))


@pytest.fixture
def build():
    """A trainer of plain gradient descent with a rate of 1e-3; options override the defaults."""

    def create(count=5, batch_size=2, bad=(), unit="epoch", values=None, **options):
        defaults = {"grad_accum_steps": 1, "clip_grad": None, "clip_mode": "norm", "max_steps": None}
        defaults |= {"seed": 7, "rank": 0, "log_interval": 100, "batch_size": batch_size}
        session = SimpleNamespace(
            options=SimpleNamespace(**{**defaults, **options}),
            unit=unit,
            autocast=contextlib.nullcontext,
            scaler=torch.amp.GradScaler("cpu", enabled=False),
            memory_format=torch.contiguous_format,
        )
        model = Squares()
        optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
        scheduler = SimpleNamespace(seen=[], step_update=lambda updates: scheduler.seen.append(updates))
        return Trainer(session, NotingTask(model), Numbers(count, batch_size, bad, values), optimizer, scheduler)

    return create


def test_an_epoch_ends_where_its_images_do(build):
    trainer, progress = build(), Progress(epoch=3, updates=9)
    after = []
    trainer.after_update = lambda progress: after.append(progress.updates)
    metrics = train_one_epoch(trainer, progress)
    assert (progress.epoch, progress.step, progress.updates, progress.images) == (3, 3, 12, 5)
    assert trainer.completed(progress)
    assert trainer.task.epochs == [3]
    assert trainer.scheduler.seen == [10, 11, 12]
    assert after == [10, 11]  # after the last update comes the evaluation
    assert metrics.keys() == {"loss", "bad_images", "skipped"}


def test_the_loss_is_the_mean_over_images(build):
    trainer, progress = build(), Progress()
    trainer.optimizer.param_groups[0]["lr"] = 0.0
    assert train_one_epoch(trainer, progress)["loss"] == pytest.approx((1 + 4 + 9 + 16 + 25) / 5)
    assert progress.mean_loss == pytest.approx(11)


@pytest.mark.parametrize("batch_size, accumulated", [(4, 1), (2, 2), (1, 4)])
def test_each_image_of_an_update_counts_the_same(build, batch_size, accumulated):
    """Also of the last update, which has one image: w <- w (1 - 2 lr mean x^2)."""
    trainer = build(5, batch_size, grad_accum_steps=accumulated)
    train_one_epoch(trainer, Progress())
    expected = (1 - 2e-3 * (1 + 4 + 9 + 16) / 4) * (1 - 2e-3 * 25)
    assert trainer.model.weight.item() == pytest.approx(expected, rel=1e-6)
    assert trainer.updates_per_epoch == 2


def test_images_that_cannot_be_read(build):
    """They are counted, batches without any image change nothing, and the others count as much as ever."""
    trainer, progress = build(6, 2, bad=(1, 2, 3)), Progress()
    metrics = train_one_epoch(trainer, progress)
    assert (metrics["bad_images"], progress.images, progress.updates) == (3, 3, 3)
    assert trainer.task.shares == [(1, 2), (2, 2)]
    expected = (1 - 2e-3 * 1 / 2) * (1 - 2e-3 * (25 + 36) / 2)
    assert trainer.model.weight.item() == pytest.approx(expected, rel=1e-6)
    with pytest.raises(UsageError, match="nothing to learn: no image can be read"):
        train_one_epoch(build(2, 1, bad=(0, 1)), Progress())


def test_it_stops_at_the_requested_update_and_goes_on_from_there(build):
    whole = build()
    train_one_epoch(whole, Progress())
    parts, progress = build(max_steps=2), Progress()
    train_one_epoch(parts, progress)
    assert (progress.step, parts.done(progress), parts.completed(progress)) == (2, True, False)
    parts.options.max_steps = None
    train_one_epoch(parts, progress)
    assert torch.equal(parts.model.weight, whole.model.weight)
    assert parts.task.draws == whole.task.draws


def test_a_complete_epoch_has_nothing_left_but_its_metrics(build):
    """As after an evaluation that failed."""
    trainer, progress = build(), Progress()
    metrics = train_one_epoch(trainer, progress)
    weight = trainer.model.weight.clone()
    assert train_one_epoch(trainer, progress) == metrics
    assert torch.equal(trainer.model.weight, weight)
    assert progress.updates == 3


def test_random_numbers_are_a_function_of_the_place(build):
    first, again, later = build(), build(), build()
    train_one_epoch(first, Progress())
    train_one_epoch(again, Progress(updates=5))
    train_one_epoch(later, Progress(epoch=1))
    assert first.task.draws == again.task.draws  # of epoch and step
    assert set(first.task.draws).isdisjoint(later.task.draws)
    assert len(set(first.task.draws)) == 3
    other = build(rank=1)
    train_one_epoch(other, Progress())
    assert set(first.task.draws).isdisjoint(other.task.draws)


def test_a_run_in_steps_draws_by_the_number_of_updates(build):
    whole, parts = build(6, 2, unit="step"), build(4, 2, unit="step")
    train_one_epoch(whole, Progress())
    train_one_epoch(parts, Progress(epoch=1, updates=1))
    assert whole.task.draws[1:] == parts.task.draws


@pytest.mark.parametrize("unit, place", [("epoch", "epoch 2, step 1"), ("step", "step 8")])
def test_a_loss_that_is_not_finite(build, unit, place):
    trainer = build(4, 2, unit=unit, values=[1.0, 2.0, float("inf"), 4.0])
    expected = f"^the loss is inf: {place}, lr 1.000e-03, first in the images; lower --lr, lengthen --warmup-{unit}s or"
    with pytest.raises(NonFiniteError, match=expected):
        train_one_epoch(trainer, Progress(epoch=2, updates=7))
    assert trainer.model.weight.isfinite()


def test_clipping(build):
    trainer = build(1, 1, values=[100.0], clip_grad=0.5)
    train_one_epoch(trainer, Progress())
    assert trainer.model.weight.item() == pytest.approx(1 - 1e-3 * 0.5, rel=1e-6)


def test_averages_follow_each_update(build):
    trainer = build()
    trainer.task.setup_ema(decay=0.0)
    train_one_epoch(trainer, Progress())
    assert torch.equal(trainer.task.get_trainable_module(ema=True).module.weight, trainer.model.weight)
