"""Trainings that end before their last step, and that go on afterwards."""

import os
import signal

import pytest
import torch
from transformers import TrainerState

from sot_base.errors import UsageError
from sot_hf.arguments import parse_arguments
from sot_hf.callbacks import EarlyStopping
from sot_hf.run_glue import main
from sot_hf.trainer import HeadTrainer
from tests.sot_hf.test_run_glue import weights, words

RUN = ("--task_name", "RTE", "--do_train", "--do_eval", "--num_train_epochs", "2", "--head-dropout", "0.3")
RESUME = ("--resume_from_checkpoint", "last")


@pytest.fixture(scope="module")
def whole(bert_folder, rte, tmp_path_factory):
    output = tmp_path_factory.mktemp("whole") / "out"
    main(words(bert_folder, rte, output, *RUN))
    return output


def same(first, second):
    expected = weights(second)
    return all(torch.equal(value, expected[name]) for name, value in weights(first).items())


@pytest.mark.parametrize("step", [4, 6, 9, 12])
def test_sigterm_saves_and_ends_with_143(step, whole, bert_folder, rte, tmp_path, monkeypatch, capsys):
    steps, train, before = [], HeadTrainer.training_step, signal.getsignal(signal.SIGTERM)

    def terminated_in_a_step(self, *args, **kwargs):
        steps.append(self.state.global_step + 1)
        if steps[-1] == step:
            os.kill(os.getpid(), signal.SIGTERM)
        return train(self, *args, **kwargs)

    with monkeypatch.context() as patch:
        patch.setattr(HeadTrainer, "training_step", terminated_in_a_step)
        with pytest.raises(SystemExit) as end:
            main(words(bert_folder, rte, tmp_path, *RUN))
    assert end.value.code == 143
    assert steps[-1] == step
    assert f"terminated: saved {tmp_path}/checkpoint-{step}; resume with --resume" in capsys.readouterr().err
    assert not (tmp_path / "model.safetensors").exists()
    assert signal.getsignal(signal.SIGTERM) is before
    main(words(bert_folder, rte, tmp_path, *RUN, *RESUME))
    assert same(tmp_path, whole)


def test_sigterm_outside_of_a_training_ends_at_once(whole, rte, tmp_path, monkeypatch):
    monkeypatch.setattr(HeadTrainer, "evaluate", lambda *_, **__: os.kill(os.getpid(), signal.SIGTERM))
    with pytest.raises(SystemExit) as end:
        main(words(whole, rte, tmp_path / "out", "--task_name", "RTE", "--do_eval"))
    assert end.value.code == 143


def test_patience_counts_evaluations_without_an_improvement():
    def stops(values, patience=2, threshold=0.0, greater_is_better=True):
        state = TrainerState()
        state.log_history = [{"loss": 1.0}, *({"eval_mcc": value, "eval_loss": 3.0} for value in values)]
        return EarlyStopping(patience, threshold, "eval_mcc", greater_is_better).is_over(state)

    assert not stops([])
    assert not stops([0.5, 0.4])
    assert stops([0.5, 0.4, 0.5])
    assert not stops([0.5, 0.4, 0.6, 0.5])
    assert stops([0.5, 0.505, 0.51], threshold=0.01)
    assert not stops([0.5, 0.52, 0.54], threshold=0.01)
    assert stops([0.5, 0.6, 0.7], greater_is_better=False)


def test_a_run_that_stopped_early_is_finished(bert_folder, rte, tmp_path):
    """It stops after the epochs of its patience, and a restart does not train on."""
    run = ("--task_name", "RTE", "--do_train", "--do_eval", "--num_train_epochs", "9", "--learning_rate", "1e-12")
    run += ("--early_stopping_patience", "2", "--lr_scheduler_type", "constant")
    command = [word for word in words(bert_folder, rte, tmp_path, *run)]
    main(command)
    checkpoints = sorted(path.name for path in tmp_path.glob("checkpoint-*"))
    assert checkpoints == ["checkpoint-18", "checkpoint-6"]  # the last one and the best one
    before = weights(tmp_path)
    main([*command, *RESUME])
    assert sorted(path.name for path in tmp_path.glob("checkpoint-*")) == checkpoints
    assert all(torch.equal(value, before[name]) for name, value in weights(tmp_path).items())


def test_early_stopping_needs_evaluations(tmp_path):
    base = ["--model_name_or_path", "m", "--data_dir", "d", "--output_dir", str(tmp_path), "--do_train", "--use_cpu"]
    with pytest.raises(UsageError, match="no evaluation during the training: --early_stopping_patience; give"):
        parse_arguments([*base, "--early_stopping_patience", "2"])
    options = parse_arguments([*base, "--do_eval", "--early-stopping-patience", "2"])
    assert (options.glue.early_stopping_patience, options.glue.early_stopping_threshold) == (2, 0.0)
