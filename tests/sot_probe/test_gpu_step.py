"""Training and prediction of heads on a GPU: the host waits for nothing within an epoch."""

import pytest
import torch

from sot_base import later_values
from sot_core import ClassificationHead, HeadConfig
from sot_core.build import FUSIONS, NORMALIZATIONS, POOLINGS
from sot_probe.layer_head import LayerHead
from sot_probe.objective import Objective
from sot_probe.trainee import Candidate, Trainee, TrainingSettings
from tests.fake_gpu import GPU, HostWait, no_waits, to_gpu

DIM, CLASSES = 12, 3
HEADS = [{"pooling": name} for name in POOLINGS] + [{"normalization": name} for name in NORMALIZATIONS]
HEADS += [{"fusion": name} for name in FUSIONS]


def plain_adamw(groups, settings):
    """As the default one, but not fused: that kernel is not made for the stand-in."""
    return torch.optim.AdamW(groups, settings.lr, weight_decay=settings.weight_decay)


def trainee(kind="classes", weights=None, **fields):
    config = HeadConfig(DIM, CLASSES, **{"num_heads": 2, "q_dim": 4, "k_dim": 4, "num_queries": 4, **fields})
    candidate = Candidate(lambda: LayerHead(ClassificationHead(config)), TrainingSettings(lr=0.1, batch_size=4))
    return Trainee(candidate, 1, 10, Objective(kind, CLASSES, weights), plain_adamw, GPU)


def targets_of(kind):
    if kind == "sets":
        return torch.zeros(4, CLASSES, dtype=torch.bool, device=GPU)
    if kind == "numbers":
        return torch.zeros(4 * CLASSES, device=GPU)  # one for each logit
    return torch.zeros(4, dtype=torch.int64, device=GPU)


@pytest.mark.parametrize("padded", [False, True])
@pytest.mark.parametrize("fields", HEADS, ids=str)
def test_a_step_waits_for_nothing(fields, padded):
    trained = trainee(**fields)
    states = [to_gpu(torch.zeros(4, 7, DIM))]
    mask = to_gpu(torch.zeros(4, 7, dtype=torch.bool)) if padded else None
    if fields == {"normalization": "svpn_exact"}:  # torch looks whether the singular values have converged
        with pytest.raises(HostWait, match="checks its result"), no_waits():
            trained.step(states, mask, targets_of("classes"), epoch=1)
        return
    with no_waits():
        for _ in range(3):
            trained.step(states, mask, targets_of("classes"), epoch=1)
        with torch.no_grad():
            logits = trained.head.eval()(states, mask)
    assert logits.shape == (4, CLASSES)
    assert trained.update == 3


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("kind", ["classes", "sets", "numbers"])
def test_no_loss_waits(kind, weighted):
    trained = trainee(kind, torch.ones(CLASSES) if weighted and kind != "numbers" else None)
    with no_waits():
        trained.step([torch.zeros(4, 7, DIM, device=GPU)], None, targets_of(kind), epoch=1)


def test_a_head_that_diverges_is_given_up_when_its_loss_arrives(monkeypatch):
    arrived = []

    class Copy:
        def __init__(self, values):
            self.values = values

        def has_arrived(self):
            return bool(arrived)

        def wait(self):
            return [float("nan")]

    monkeypatch.setattr(later_values, "_HostCopy", Copy)
    trained, batch = trainee(), [to_gpu(torch.zeros(4, 7, DIM))]
    trained.step(batch, None, targets_of("classes"), epoch=1)
    trained.step(batch, None, targets_of("classes"), epoch=1)
    assert trained.active
    assert trained.update == 2
    trained.settle()
    assert not trained.active
    assert trained.outcome.failed == "the loss is not finite: epoch 1, lr 0.1; give a lower --lr"
