"""A step of training and of evaluation on a GPU: the host waits for nothing before the log.

transformers' own models wait once, as the forward pass begins: they ask whether a batch has padding, since without it
attention needs no mask. Its loop around the step waits where it logs, saves or evaluates, and after every step for
``logging_nan_inf_filter``, which `HeadTrainer` switches off. With gradients in float16 torch's scaler waits.
"""

import math

import pytest
from transformers import TrainingArguments, masking_utils

from sot_base import later_values
from sot_base.errors import UsageError
from sot_hf.batching import PaddingCollator
from sot_hf.trainer import HeadTrainer
from tests.fake_gpu import GPU, no_waits, to_gpu
from tests.sot_hf.models import tiny_model, tokenizer


@pytest.fixture
def create(tmp_path, monkeypatch):
    """A trainer on the stand-in for a GPU, and a batch of rows of two lengths."""

    def build(kind, attention="sdpa", **config):
        model = tiny_model(kind, **config)
        model.set_attn_implementation(attention)
        collator = PaddingCollator(tokenizer(), 40)
        arguments = TrainingArguments(tmp_path, use_cpu=True, report_to="none", max_steps=9, optim="adamw_torch")
        trainer = HeadTrainer(model, arguments, data_collator=collator)
        trainer.model = trainer.model_wrapped = model.to(GPU)
        trainer.create_optimizer_and_scheduler(num_training_steps=9)
        trainer.current_gradient_accumulation_steps = 1  # as its loop sets it
        monkeypatch.setattr(TrainingArguments, "device", GPU)
        rows = [{"input_ids": [2, 5, *[6] * more, 3], "attention_mask": [1] * (3 + more)} for more in (0, 4)]
        labels = [0.5, 1.0] if config.get("num_labels") == 1 else [0, 1]
        batch = collator([{**row, "labels": label} for row, label in zip(rows, labels, strict=True)])
        return trainer, to_gpu(dict(batch))

    return build


@pytest.fixture
def asked(monkeypatch):
    """How often transformers asked for padding; the answer is that there may be some."""
    asked = []
    for name in ("_ignore_bidirectional_mask_sdpa", "_ignore_causal_mask_sdpa"):
        monkeypatch.setattr(masking_utils, name, lambda *args, **kwargs: bool(asked.append(args)))
    return asked


CASES = [("bert", {}), ("roberta", {}), ("distilbert", {}), ("electra", {}), ("bert", {"num_labels": 1})]
CASES += [("bert", {"head": {"fusion": "sum_loss"}}), ("bert", {"layers_read": (1, 2)}), ("gpt2", {})]


@pytest.mark.parametrize("kind, config", CASES)
def test_a_step_waits_for_nothing(create, kind, config, asked):
    trainer, batch = create(kind, **config)
    with no_waits():
        for _ in range(2):
            trainer.training_step(trainer.model.train(), dict(batch))
            trainer._clip_grad_norm(trainer.model)
            trainer.optimizer.step()
            trainer.model.zero_grad()
        loss, logits, labels = trainer.prediction_step(trainer.model, dict(batch), prediction_loss_only=False)
    assert len(asked) <= 3  # once a forward pass
    assert loss.shape == ()
    assert len(logits) == len(labels) == 2
    assert not trainer.args.logging_nan_inf_filter


def test_a_loss_that_is_not_finite_ends_the_training_when_it_arrives(create, asked, monkeypatch):
    class Copy:
        def __init__(self, values):
            assert values.shape == (1,)

        def has_arrived(self):
            return False

        def wait(self):
            return [math.inf]

    monkeypatch.setattr(later_values, "_HostCopy", Copy)
    monkeypatch.setattr("sot_hf.trainer.find_culprit", lambda model, forward: "the weight w")
    trainer, batch = create("bert")
    trainer.training_step(trainer.model, batch)
    trainer.state.global_step = 3
    with pytest.raises(UsageError, match=r"the loss is not finite, training has diverged: step 1, .*in the weight w"):
        trainer.save_model()
