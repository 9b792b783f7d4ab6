"""--head-lr-scale and --layer-decay: each part of the model moves by its own share of the learning rate."""

import pytest
import torch
from fairseq import optim
from fairseq.optim.fp16_optimizer import FP16Optimizer
from omegaconf import OmegaConf

from sot_base.errors import UsageError
from sot_fairseq.runs.learning_rates import scale_learning_rates, scaled_groups
from sot_fairseq.tasks.sentence_prediction_mgcrp import SentencePredictionMGCrPTask as Task
from tests.sot_fairseq.conftest import run_train

ONE_STEP = ("--max-update", "1", "--dropout", "0", "--attention-dropout", "0", "--encoder-layers", "3", "--no-save")


@pytest.fixture
def moved(data, tmp_path, monkeypatch):
    """Largest change of every parameter in one step of Adam, whose first step is the learning rate itself."""
    step = Task.optimizer_step

    def run(*words):
        changes = {}

        def watched(self, optimizer, model, update_num):
            before = {name: parameter.detach().clone() for name, parameter in model.named_parameters()}
            step(self, optimizer, model, update_num)
            for name, parameter in model.named_parameters():
                if parameter.grad is not None and parameter.grad.abs().max() > 1e-4:
                    changes[name] = (parameter - before[name]).abs().max().item()
            assert len(optimizer.optimizer.param_groups) == 1  # as fairseq's schedulers and checkpoints expect

        monkeypatch.setattr(Task, "optimizer_step", watched)
        run_train(data, tmp_path / "run", *ONE_STEP, *words)
        return changes

    return run


def test_each_part_moves_by_its_own_rate(moved):
    changes = moved("--lr", "0.001", "--head-lr-scale", "5", "--layer-decay", "0.5")
    scales = {"classification_heads.": 5, "layers.2.": 0.5, "layers.1.": 0.25, "layers.0.": 0.125, "embed_": 0.0625}
    for part, scale in scales.items():
        values = [value for name, value in changes.items() if part in name]
        assert max(values) == pytest.approx(0.001 * scale, rel=0.01), part
    assert len(changes) > 20


def test_without_them_every_part_has_the_same_rate(moved):
    changes = moved("--lr", "0.001")
    assert max(changes.values()) == pytest.approx(0.001, rel=0.01)
    assert max(value for name, value in changes.items() if "embed_" in name) == pytest.approx(0.001, rel=0.01)


def test_a_run_goes_on_bitwise(data, tmp_path):
    words = ("--head-lr-scale", "4", "--layer-decay", "0.8", "--max-epoch", "2", "--lr-scheduler", "inverse_sqrt")
    straight = run_train(data, tmp_path / "straight", *words, "--max-update", "12")
    run_train(data, tmp_path / "stopped", *words, "--max-update", "5")
    resumed = run_train(data, tmp_path / "stopped", *words, "--max-update", "12")
    assert all(torch.equal(value, resumed["model"][name]) for name, value in straight["model"].items())
    assert straight["cfg"]["task"]["head_lr_scale"] == 4
    assert len(straight["last_optimizer_state"]["param_groups"]) == 1


@pytest.mark.parametrize(
    "words, message",
    [
        (("--head-lr-scale", "0"), "not a positive number: --head-lr-scale 0"),
        (("--head-lr-scale", "nan"), "not a positive number: --head-lr-scale nan"),
        (("--layer-decay", "1.5"), r"not in \(0, 1\]: --layer-decay 1.5"),
        (("--layer-decay", "0"), r"not in \(0, 1\]: --layer-decay 0"),
    ],
)
def test_values_out_of_range_are_refused(data, tmp_path, words, message):
    with pytest.raises(UsageError, match=message):
        run_train(data, tmp_path, *words)


def _half_precision(model, flatten):
    cfg = OmegaConf.create(
        {
            "common": {"fp16_no_flatten_grads": not flatten, "fp16_scale_window": 1, "fp16_init_scale": 1}
            | {"fp16_scale_tolerance": 0.0, "threshold_loss_scale": None, "min_loss_scale": 1e-4},
            "optimizer": {"_name": "sgd", "lr": [1.0], "momentum": 0.0, "weight_decay": 0.0},
        }
    )
    params = list(model.parameters())
    if not flatten:
        return FP16Optimizer.build_optimizer(cfg, params)
    whole = torch.nn.Parameter(torch.cat([p.detach().float().flatten() for p in params]))  # what flattening makes
    return FP16Optimizer(cfg, params, optim.build_optimizer(cfg.optimizer, [whole]), {0: whole})


def test_half_precision_keeps_the_scales_or_says_which_flag_does():
    model = torch.nn.ModuleDict({"classification_heads": torch.nn.Linear(2, 2), "encoder": torch.nn.Linear(2, 2)})
    assert scale_learning_rates(model.half(), 3.0, 1.0)
    optimizer = _half_precision(model, flatten=False)
    with scaled_groups(optimizer):
        assert sorted(group["lr"] for group in optimizer.optimizer.param_groups) == [1.0, 3.0]
    with pytest.raises(UsageError, match="--fp16-no-flatten-grads"), scaled_groups(_half_precision(model, True)):
        pass


def test_scale_one_touches_nothing():
    model = torch.nn.Linear(2, 2)
    assert not scale_learning_rates(model, 1.0, 1.0)
    assert not hasattr(model.weight, "optim_overrides")
