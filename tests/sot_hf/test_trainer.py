"""The head's learning rate as a multiple of the backbone's."""

import shutil

import pytest
from transformers import TrainingArguments

from sot_base.errors import UsageError
from sot_hf.arguments import parse_arguments
from sot_hf.trainer import HeadTrainer
from tests.sot_hf.models import tiny_model


@pytest.mark.parametrize("scale", [1.0, 5.0])
def test_the_head_moves_by_its_own_rate_under_a_schedule(tmp_path, scale):
    model = tiny_model("bert", num_labels=2)
    rows = [{"input_ids": [2, 7 + row, 5, 3], "attention_mask": [1] * 4, "labels": row % 2} for row in range(4)]
    before = {name: parameter.detach().clone() for name, parameter in model.named_parameters()}
    arguments = TrainingArguments(
        tmp_path,
        learning_rate=1e-3,
        max_steps=1,
        use_cpu=True,
        disable_tqdm=True,
        save_strategy="no",
        report_to="none",
        weight_decay=0.0,
    )
    trainer = HeadTrainer(model, arguments, train_dataset=rows, head_lr_scale=scale)
    trainer.train()
    moved = {name: (parameter - before[name]).abs().max().item() for name, parameter in model.named_parameters()}
    head = max(value for name, value in moved.items() if name.startswith("classifier."))
    backbone = max(value for name, value in moved.items() if name.startswith("backbone."))
    assert backbone == pytest.approx(1e-3, rel=0.02)  # Adam's first step is the learning rate itself
    assert head == pytest.approx(scale * 1e-3, rel=0.02)
    groups = trainer.optimizer.param_groups
    assert sum(len(group["params"]) for group in groups) == len(moved)
    assert {group["initial_lr"] for group in groups} == {1e-3, scale * 1e-3}


@pytest.mark.parametrize("flag", ["--head_lr_scale", "--head-lr-scale"])
def test_both_spellings(flag, tmp_path):
    words = f"--model_name_or_path m --data_dir d --output_dir {tmp_path} --do_train --use_cpu {flag} 3"
    assert parse_arguments(words.split()).glue.head_lr_scale == 3.0


def test_a_full_disk_is_named(tmp_path, monkeypatch):
    model = tiny_model("bert", num_labels=2)
    arguments = TrainingArguments(tmp_path, use_cpu=True, report_to="none")
    trainer = HeadTrainer(model, arguments)

    def write_nothing(*_, **__):
        raise RuntimeError("unexpected pos 15936 vs 15824")  # torch's words for it

    monkeypatch.setattr(model, "save_pretrained", write_nothing)
    with pytest.raises(RuntimeError, match="unexpected pos"):
        trainer.save_model()
    usage = shutil.disk_usage(tmp_path)._replace(free=100)
    monkeypatch.setattr(shutil, "disk_usage", lambda _: usage)
    with pytest.raises(UsageError, match=f"no room for a checkpoint: {tmp_path}; make some"):
        trainer.save_model()
