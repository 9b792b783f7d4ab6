"""The trainer: the head's learning rate, batches and evaluation by length, and runs that diverge."""

import multiprocessing
import shutil

import pytest
import torch
from torch.testing import assert_close
from transformers import TrainingArguments

from sot_base.errors import UsageError
from sot_hf.arguments import parse_arguments
from sot_hf.batching import PaddingCollator
from sot_hf.run_glue import main
from sot_hf.trainer import HeadTrainer
from tests.sot_hf.models import randomize, tiny_model, tokenizer


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
    with pytest.raises(UsageError, match=f"the disk is full, no checkpoint was written: {tmp_path}; free some"):
        trainer.save_model()


@pytest.fixture
def rows():
    """Tokenized rows of many lengths."""
    lengths = [3 + 7 * row % 19 for row in range(26)]
    return [
        {"input_ids": [2, *[5 + (row + i) % 12 for i in range(length)], 3], "attention_mask": [1] * (length + 2)}
        | {"labels": row % 3}
        for row, length in enumerate(lengths)
    ]


def trainer_of(tmp_path, rows, model=None, compute_metrics=None, **arguments):
    arguments = {"per_device_eval_batch_size": 4, "train_sampling_strategy": "group_by_length"} | arguments
    training = TrainingArguments(tmp_path, use_cpu=True, disable_tqdm=True, report_to="none", **arguments)
    return HeadTrainer(
        model=model or randomize(tiny_model("bert")),
        args=training,
        train_dataset=rows,
        eval_dataset=rows,
        data_collator=PaddingCollator(tokenizer(), 40),
        compute_metrics=compute_metrics,
    )


def test_evaluation_goes_by_length_and_comes_back_in_order(tmp_path, rows):
    widths, seen = [], []
    model = randomize(tiny_model("bert"))
    model.register_forward_pre_hook(
        lambda _, args, kwargs: widths.append(kwargs["input_ids"].shape[1]), with_kwargs=True
    )
    trainer = trainer_of(tmp_path, rows, model, lambda outputs: seen.append(outputs) or {})
    output = trainer.predict(rows)
    assert widths == sorted(widths, reverse=True)
    assert len(set(widths)) > 3
    widths.clear()
    assert output.label_ids.tolist() == [row["labels"] for row in rows]
    with torch.no_grad():
        alone = torch.cat([model(input_ids=torch.tensor([row["input_ids"]])).logits for row in rows])
        losses = torch.nn.functional.cross_entropy(alone, torch.tensor(output.label_ids), reduction="none")
    assert_close(torch.from_numpy(output.predictions), alone, rtol=0, atol=1e-5)
    assert output.metrics["test_loss"] == pytest.approx(losses.mean().item(), rel=1e-5)
    assert sorted(seen[0].label_ids.tolist()) == sorted(output.label_ids.tolist())


@pytest.mark.parametrize("output", ["output_hidden_states", "output_attentions"])
def test_only_logits_are_kept_of_what_a_model_returns(tmp_path, rows, output):
    model = tiny_model("bert")
    model.set_attn_implementation("eager")
    setattr(model.config.backbone, output, True)
    outputs = trainer_of(tmp_path, rows, model).predict(rows)
    assert outputs.predictions.shape == (26, 3)


@pytest.mark.parametrize("workers", [0, 2])
def test_loading_processes_end_with_their_epoch_and_change_nothing(tmp_path, rows, workers):
    before = multiprocessing.active_children()
    torch.manual_seed(0)
    model = tiny_model("bert")
    trainer = trainer_of(
        tmp_path, rows, model, dataloader_num_workers=workers, num_train_epochs=3, eval_strategy="epoch",
        per_device_train_batch_size=4, learning_rate=1e-3, save_strategy="no",
    )  # fmt: skip
    trainer.train()
    assert set(multiprocessing.active_children()) <= set(before)
    torch.manual_seed(0)
    again = trainer_of(
        tmp_path, rows, tiny_model("bert"), num_train_epochs=3, eval_strategy="epoch",
        per_device_train_batch_size=4, learning_rate=1e-3, save_strategy="no",
    )  # fmt: skip
    again.train()
    for key, value in again.model.state_dict().items():
        assert torch.equal(value, model.state_dict()[key]), key


def test_two_dev_sets_are_told_apart_where_processes_stay(tmp_path, rows):
    """transformers would load the first of them twice."""
    before = set(multiprocessing.active_children())
    trainer = trainer_of(tmp_path, rows, dataloader_num_workers=1, dataloader_persistent_workers=True)
    few = rows[:7]
    for dataset in (rows, few, rows, few):
        assert len(trainer.predict(dataset).predictions) == len(dataset)
    losses = [trainer.evaluate(dataset)["eval_loss"] for dataset in (rows, few, rows)]
    assert losses[0] == losses[2] != losses[1]
    assert len(set(multiprocessing.active_children()) - before) == 2  # one a dataset


def test_divergence_is_named(tmp_path, rows):
    """Epoch, step, rate, the first module, the last good checkpoint; and that is kept."""

    def break_down(model, step):
        def hook(module, inputs, output):
            hook.calls += 1
            return output * float("nan") if hook.calls > step else output

        hook.calls = 0
        model.backbone.encoder.layer[1].output.dense.register_forward_hook(hook)

    model = tiny_model("bert")
    break_down(model, 9)
    trainer = trainer_of(
        tmp_path, rows, model, num_train_epochs=3, per_device_train_batch_size=4, save_strategy="epoch",
        learning_rate=1e-3, lr_scheduler_type="constant",
    )  # fmt: skip
    with pytest.raises(UsageError) as error:
        trainer.train()
    assert str(error.value) == (
        "the loss is not finite, training has diverged: step 10, epoch 1.29, learning rate 0.001, first in the output "
        f"of backbone.encoder.layer.1.output.dense, the last good checkpoint is {tmp_path}/checkpoint-7; lower "
        "--learning_rate, or give --max_grad_norm or --warmup_steps"
    )
    assert [path.name for path in tmp_path.iterdir()] == ["checkpoint-7"]


def test_weights_that_are_not_finite_are_never_saved(tmp_path, rows):
    model = tiny_model("bert")
    trainer = trainer_of(tmp_path, rows, model)
    with torch.no_grad():
        model.classifier.word_fc.bias[1] = float("inf")
    with pytest.raises(
        UsageError, match=r"a weight is not finite, .* first in the weight classifier\.word_fc.bias, there"
    ):
        trainer.save_model()
    with pytest.raises(UsageError, match="the outputs of 26 of 26 rows are not finite: the model; its training has"):
        trainer.predict(rows)
    assert list(tmp_path.iterdir()) == []


def test_a_token_budget_on_the_command_line(bert_folder, rte, tmp_path, monkeypatch):
    shapes = []
    step = HeadTrainer.training_step

    def training_step(self, model, inputs, *args, **kwargs):
        shapes.append(tuple(inputs["input_ids"].shape))
        return step(self, model, inputs, *args, **kwargs)

    monkeypatch.setattr(HeadTrainer, "training_step", training_step)
    base = ["--model_name_or_path", bert_folder, "--data_dir", rte, "--task_name", "RTE", "--do_train", "--use_cpu"]
    base = [str(word) for word in [*base, "--max_tokens", "300", "--num_train_epochs", "1", "--save_strategy", "no"]]
    main([*base, "--output_dir", str(tmp_path / "a")])
    assert sum(rows for rows, _ in shapes) == 48
    assert max(rows * width for rows, width in shapes) <= 300
    assert max(rows for rows, _ in shapes) > 8  # transformers' own number of rows does not limit them
    shapes.clear()
    main([*base, "--output_dir", str(tmp_path / "b"), "--per_device_train_batch_size", "3"])
    assert max(rows for rows, _ in shapes) == 3
    with pytest.raises(UsageError, match="--max_tokens beside --train_sampling_strategy random; leave one out"):
        main([*base, "--output_dir", str(tmp_path / "c"), "--train_sampling_strategy", "random"])
