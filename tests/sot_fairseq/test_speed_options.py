"""Options that make a training faster change its losses by rounding alone."""

import pytest
from fairseq.trainer import Trainer

from tests.sot_fairseq.conftest import run_train

STEPS = 20


@pytest.fixture
def losses(data, tmp_path, monkeypatch):
    """The losses of the steps of a training."""

    def train(*words):
        seen, stock = [], Trainer.train_step

        def train_step(self, samples, raise_oom=False):
            logged = stock(self, samples, raise_oom)
            seen.append(logged["loss"])
            return logged

        with monkeypatch.context() as patch:
            patch.setattr(Trainer, "train_step", train_step)
            run_train(
                data,
                tmp_path / "-".join(("run", *words)),
                "--max-epoch",
                "9",
                "--max-update",
                str(STEPS),
                "--lr",
                "1e-3",
                *words,
            )
        return seen

    return train


def test_losses_are_those_of_the_plain_training(losses):
    plain = losses("--use-old-adam")
    assert len(plain) == STEPS
    assert abs(plain[0] - plain[-1]) > 0.01  # it learns, so that wrong steps would show
    assert losses() == pytest.approx(plain, abs=1e-3)  # the fused Adam, the default
    assert losses("--num-workers", "1") == pytest.approx(plain, abs=1e-3)
