"""Training many heads side by side on states in memory."""

import numpy as np
import pytest
import torch

from sot_base.errors import UsageError
from sot_core import ClassificationHead, HeadConfig
from sot_probe.experiment import Experiment
from sot_probe.grid import ProbeSettings
from sot_probe.held_out import hold_out
from sot_probe.layer_head import LayerHead
from sot_probe.objective import Objective, as_targets
from sot_probe.states import TokenStates
from sot_probe.trainee import Candidate, TrainingSettings, lr_factor
from sot_probe.training import Split, predict, train_heads

DIM = 6
FAST = TrainingSettings(lr=0.02, batch_size=8, epochs=3)


def make_split(rows, layers=1, seed=0):
    """Rows of 2 to 6 tokens whose class is the sign of the first channel's mean over the words."""
    generator = torch.Generator().manual_seed(seed)
    lengths = torch.randint(2, 7, (rows,), generator=generator).tolist()
    states = TokenStates.from_rows([[torch.randn(n, DIM, generator=generator) for _ in range(layers)] for n in lengths])
    means = [layer[1:, 0].mean() for layer in torch.split(states.layers[-1], lengths)]
    return Split(states, as_targets(np.array([int(mean > 0) for mean in means]), "classes"))


def head(fusion="words", **settings):
    return LayerHead(ClassificationHead(HeadConfig(DIM, 2, num_heads=2, q_dim=3, fusion=fusion, **settings)))


def accuracy(predictions, targets):
    return {"accuracy": 100.0 * float((predictions == targets).mean())}


def train(candidates, data, seed=1, **kwargs):
    return train_heads(candidates, data, Objective("classes", 2), seed, **kwargs)


def weights(outcome):
    return {name: value.clone() for name, value in outcome.head.state_dict().items()}


def equal(first, second):
    return all(torch.equal(first[name], second[name]) for name in first)


def test_a_head_does_not_depend_on_the_others_in_the_pass():
    data = make_split(40)
    candidates = [
        Candidate(lambda: head(drop_rate=0.3), FAST),
        Candidate(lambda: head("cls", feature_norm="batch_norm"), TrainingSettings(0.1, 8, 2)),
        Candidate(lambda: head(pooling="gap", drop_rate=0.5), TrainingSettings(0.01, 16, 3)),
    ]
    before = torch.random.get_rng_state()
    together = train(candidates, data)
    assert torch.equal(torch.random.get_rng_state(), before)
    for candidate, outcome in zip(candidates, together, strict=True):
        (alone,) = train([candidate], data)
        assert equal(weights(alone), weights(outcome))
        assert outcome.parameters == sum(parameter.numel() for parameter in outcome.head.parameters())
    assert not equal(weights(train(candidates[:1], data, seed=2)[0]), weights(together[0]))


def test_rows_of_a_batch_are_read_once_for_all_heads(monkeypatch):
    data, reads = make_split(40), []
    gather = TokenStates.gather
    monkeypatch.setattr(TokenStates, "gather", lambda self, rows: reads.append(len(rows)) or gather(self, rows))
    train([Candidate(head, FAST) for _ in range(4)], data)
    assert sum(reads) == 3 * 40


def test_learning_and_the_best_epoch():
    data, held = make_split(200), make_split(100, seed=1)
    settings = TrainingSettings(lr=0.03, batch_size=16, epochs=6)
    (outcome,) = train(
        [Candidate(lambda: head(pooling="gap"), settings)],
        data,
        watch={"held": held},
        measure=accuracy,
        main_metric="accuracy",
    )
    scores = [metrics["held"]["accuracy"] for metrics in outcome.history]
    assert max(scores) > 85
    assert len(scores) == 6
    assert scores[outcome.best_epoch - 1] == max(scores)
    (logits,) = predict([outcome.head], held.states)
    assert accuracy(logits.argmax(1).numpy(), held.targets.numpy())["accuracy"] == max(scores)
    assert (outcome.predictions["held"] == logits.argmax(1).numpy()).all()


def test_patience_ends_a_training_that_gets_no_better():
    data = make_split(20)
    never_better = iter(range(100, 0, -1))
    (outcome,) = train(
        [Candidate(head, TrainingSettings(epochs=50))],
        data,
        watch={"held": data},
        measure=lambda *_: {"accuracy": float(next(never_better))},
        main_metric="accuracy",
        patience=3,
    )
    assert (outcome.best_epoch, len(outcome.history)) == (1, 4)


def test_a_head_that_diverges_is_named_and_the_others_go_on():
    data = make_split(40)
    bad, good = train([Candidate(head, TrainingSettings(1e30, 8, 3)), Candidate(head, FAST)], data)
    assert bad.failed.startswith("the loss is not finite: epoch ")
    assert not good.failed
    assert equal(weights(good), weights(train([Candidate(head, FAST)], data)[0]))


@pytest.mark.parametrize("kind, width", [("sets", 3), ("numbers", 1)])
def test_other_targets(kind, width):
    data = make_split(60)
    targets = torch.rand(60, 3) > 0.5 if kind == "sets" else torch.rand(60)
    weights = torch.tensor([2.0, 1.0, 1.0]) if kind == "sets" else None

    def create():
        return LayerHead(ClassificationHead(HeadConfig(DIM, width, pooling="gap", fusion="sum_loss")))

    objective = Objective(kind, width, weights)
    (outcome,) = train_heads([Candidate(create, FAST)], Split(data.states, targets), objective, 1)
    (logits,) = predict([outcome.head], data.states)
    assert objective.decide(logits).shape == targets.shape


def test_layers_and_their_mix():
    data = make_split(120, layers=3)
    settings = TrainingSettings(lr=0.05, batch_size=16, epochs=6)

    def on_layer(layer, mixed=0):
        config = HeadConfig(DIM, 2, pooling="gap", fusion="words")
        return Candidate(lambda: LayerHead(ClassificationHead(config), layer, mixed), settings)

    first, last, mix = train([on_layer(0), on_layer(2), on_layer(0, 3)], data)
    scores = [
        float((logits.argmax(1) == data.targets).float().mean())
        for logits in predict([outcome.head for outcome in (first, last, mix)], data.states)
    ]
    assert scores[1] > 0.85
    assert scores[2] > 0.75
    assert scores[0] < 0.75
    assert mix.head.layer_mix.scores.softmax(0).argmax() == 2  # where the class can be read


def test_settings_are_chosen_on_held_out_rows_and_dev_is_read_once():
    data, dev = make_split(100), make_split(50, seed=3)
    measured = []

    def measure(predictions, targets):
        measured.append(len(targets))
        return accuracy(predictions, targets)

    experiment = Experiment(
        train=data,
        dev={"dev": dev},
        objective=Objective("classes", 2),
        measure=measure,
        main_metric="accuracy",
        create_head=lambda settings: ClassificationHead(HeadConfig(DIM, 2, **settings)),
        held_out=0.2,
    )
    tried = tuple(TrainingSettings(lr, 16, 5) for lr in (1e-9, 0.05, 1e30))
    setting = ProbeSettings("gap-words", "gap-words", {}, tried)
    (choice,) = experiment.choose([setting], seed=1)
    assert choice.settings.lr == 0.05
    assert choice.score > 70
    assert measured == [20, 20]  # the third training failed
    results = list(experiment.train_seeds([setting], [choice], [1, 2]))
    assert [seed for seed, _ in results] == [1, 2]
    assert measured == [20, 20, 50, 50]
    assert results[0][1][0].metrics["dev"]["accuracy"] > 70


def test_all_failed_is_told():
    data = make_split(40)
    data.states.layers[0].fill_(float("nan"))
    config = HeadConfig(DIM, 2, fusion="cls")
    dev = {"dev": make_split(10)}
    experiment = Experiment(
        data, dev, Objective("classes", 2), accuracy, "accuracy", lambda _: ClassificationHead(config)
    )
    setting = ProbeSettings("cls", "cls", {}, (TrainingSettings(),))
    assert "not finite" in experiment.choose([setting], seed=1)[0].failed


def test_held_out_rows_have_every_class_in_its_share():
    targets = np.array([0] * 90 + [1] * 10)
    kept, held = hold_out(targets, 0.2, "classes", seed=3)
    assert len(held) == 20
    assert targets[held].sum() == 2
    assert sorted([*kept, *held]) == list(range(100))
    assert (hold_out(targets, 0.2, "classes", seed=3)[1] == held).all()
    assert (hold_out(targets, 0.2, "classes", seed=4)[1] != held).any()
    assert len(hold_out(np.array([0, 1, 2, 3]), 0.5, "classes")[0]) == 2  # a class of one row
    with pytest.raises(UsageError, match=r"0 of 4 rows would be held out: --held-out 0.1"):
        hold_out(np.arange(4), 0.1, "classes")


def test_the_rate_falls_to_zero():
    rates = [lr_factor(update, 100) for update in range(100)]
    assert rates[0] == 0
    assert max(rates) == rates[6] == 1
    assert rates[-1] == pytest.approx(1 / 94)
