"""Options that make a training faster change its losses by rounding alone."""

import pytest

from tests.vision.conftest import rows

STEPS = 20
# Each epoch is one batch of the same images, in whatever order.
COMMON = ("--epochs", STEPS, "-b", 15, "--lr", 1e-3, "--warmup-epochs", 0, "--sched", "constant", "--no-aug")
COMMON += ("--hflip", 0, "--smoothing", 0, "--opt", "adamw", "--opt-kwargs", "eps=1e-3")


@pytest.fixture
def losses(train, images):
    def run(*words):
        folder = train(images, *COMMON, *words, name="-".join(map(str, ("run", *words))))
        return [float(row["train_loss"]) for row in rows(folder)]

    return run


def test_losses_are_those_of_the_plain_training(losses):
    plain = losses()
    assert len(plain) == STEPS
    assert plain[0] - plain[-1] > 0.1  # it learns, so that wrong steps would show
    assert losses("--channels-last") == pytest.approx(plain, abs=1e-3)
    assert losses("fused=true") == pytest.approx(plain, abs=1e-3)  # one more of --opt-kwargs
    assert losses("-j", 1) == pytest.approx(plain, abs=1e-3)
    assert losses("--amp", "--amp-dtype", "bfloat16") == pytest.approx(plain, abs=0.1)
