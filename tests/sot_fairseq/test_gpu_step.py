"""A training step on a GPU: the host waits for nothing in model, criterion and log; validation has one wait a batch.

fairseq's own trainer still waits after every backward pass, to see whether the norm of the gradients is finite, and
after the update, where it rounds what was logged. In validation the predictions are gathered, so they come to the host.
"""

import pytest
import torch
from fairseq import tasks
from fairseq.logging import metrics
from fairseq.models import transformer

from sot_fairseq.fairseq_patches.padding_mask import with_padding_mask
from tests.fake_gpu import HostWait, no_waits, to_gpu
from tests.sot_fairseq.conftest import command, parse


class PlainOptimizer:
    """What a task asks of fairseq's optimizers."""

    def __init__(self, model):
        self.optimizer = torch.optim.AdamW([part for part in model.parameters() if part.requires_grad], lr=0.1)

    def backward(self, loss):
        loss.backward()

    def step(self):
        self.optimizer.step()


def build(data, tmp_path, *words, arch="roberta"):
    """Task, model, criterion and a batch of a command, before anything is on a GPU."""
    config = parse(command(data, tmp_path / "run", *words, arch=arch))
    task = tasks.setup_task(config.task)
    task.load_dataset("train")
    model, criterion = task.build_model(config.model), task.build_criterion(config.criterion)
    batches = task.get_batch_iterator(task.datasets["train"], max_sentences=8).next_epoch_itr(shuffle=False)
    return task, model, criterion, next(batches)


CASES = [("--head-pooling", "mgcrp"), ("--head-fusion", "cls"), ("--head-fusion", "sum_loss"), ("--freeze-backbone",)]
CASES += [("--train-layers", "1")]


@pytest.mark.parametrize("words", CASES, ids=" ".join)
def test_a_step_waits_for_nothing(data, tmp_path, words):
    task, model, criterion, sample = build(data, tmp_path, *words)
    model, sample = model.to("meta").train(), to_gpu(sample)
    optimizer = PlainOptimizer(model)
    with no_waits(), metrics.aggregate():
        for update in range(2):
            loss, _, log = task.train_step(sample, model, criterion.train(), optimizer, update)
            optimizer.step()
            task.reduce_metrics([log], criterion)
    assert loss.shape == ()
    with pytest.raises(HostWait, match="waits for a copy from meta to cpu"), no_waits():
        task.valid_step(sample, model, criterion.eval())


def test_weights_of_classes_wait_for_nothing(data, tmp_path):
    """Their sum stays on the GPU; where fairseq's trainer and its meters divide by it they wait."""
    task, model, criterion, sample = build(data, tmp_path, arch="sot_bert_base")
    model, sample = model.to("meta").train(), to_gpu(sample)
    task.class_weights = [0.5, 2.0]
    criterion._weights(sample["target"])  # copied once a training
    with no_waits():
        _, sample_size, _ = task.train_step(sample, model, criterion.train(), PlainOptimizer(model), 0)
    assert sample_size.shape == ()


@pytest.mark.parametrize("fixture", ["score_data", "pair_data"])
def test_other_targets(fixture, request, tmp_path):
    task, model, criterion, sample = build(request.getfixturevalue(fixture), tmp_path, arch="sot_bert_base")
    model, sample = model.to("meta").train(), to_gpu(sample)
    with no_waits(), metrics.aggregate():
        _, _, log = task.train_step(sample, model, criterion.train(), PlainOptimizer(model), 0)
        task.reduce_metrics([log], criterion)


def test_processes_sum_what_a_step_logs_and_gather_predictions(data, tmp_path):
    task, model, criterion, sample = build(data, tmp_path)
    assert type(task).logging_outputs_can_be_summed(criterion.train())
    _, _, log = task.train_step(sample, model, criterion, PlainOptimizer(model), 0)
    assert all(isinstance(value, int | float) or value.shape == () for value in log.values())
    assert not type(task).logging_outputs_can_be_summed(criterion.eval())


def test_sums_of_processes_give_the_same_metrics(data, tmp_path):
    task, model, criterion, sample = build(data, tmp_path)
    logs = [task.train_step(sample, model, criterion.train(), PlainOptimizer(model), 0)[2] for _ in range(2)]
    summed = {key: sum(torch.as_tensor(log[key], dtype=torch.double) for log in logs) for key in logs[0]}
    with metrics.aggregate() as gathered:
        criterion.reduce_metrics(logs)
    with metrics.aggregate() as added:
        criterion.reduce_metrics([summed])
    assert gathered.get_smoothed_values() == added.get_smoothed_values()
    assert gathered["loss"].avg == added["loss"].avg


@pytest.mark.parametrize("padded", [True, False])
@pytest.mark.parametrize("arch", ["roberta", "sot_bert_base"])
@pytest.mark.parametrize("all_states", [True, False])
def test_the_encoder_that_does_not_wait_is_fairseqs(data, tmp_path, padded, arch, all_states):
    _, model, _, _ = build(data, tmp_path, arch=arch)
    encoder = model.eval().encoder.sentence_encoder
    assert isinstance(encoder, transformer.TransformerEncoderBase)
    tokens = torch.randint(4, 12, (3, 7))
    if padded:
        tokens[1, 4:] = encoder.padding_idx
    stock, own = encoder(tokens, return_all_hiddens=all_states), with_padding_mask(encoder, tokens, all_states)
    assert stock.keys() == own.keys()
    for key, values in stock.items():
        assert len(values) == len(own[key]), key
        for value, other in zip(values, own[key], strict=True):
            assert value is other is None or torch.equal(value, other), key
