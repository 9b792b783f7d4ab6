"""Options that make a training faster change its losses by rounding alone."""

import json

import pytest

from sot_hf.run_glue import main

STEPS = 20
QUICK = ("--use_cpu", "--disable_tqdm", "True", "--learning_rate", "1e-3", "--per_device_train_batch_size", "8")
LOG = ("--max_steps", STEPS, "--logging_steps", "1", "--eval_strategy", "no", "--save_strategy", "steps")


@pytest.fixture(scope="module")
def losses(bert_folder, rte, tmp_path_factory):
    """The losses of the steps of a training."""

    def train(*more):
        output = tmp_path_factory.mktemp("run")
        words = ("--model_name_or_path", bert_folder, "--data_dir", rte, "--task_name", "RTE", "--do_train")
        words += ("--output_dir", output, "--load_best_model_at_end", "False", "--save_steps", STEPS)
        main([str(word) for word in (*words, *QUICK, *LOG, *more)])
        state = json.loads((output / "trainer_state.json").read_text())
        return [entry["loss"] for entry in state["log_history"] if "loss" in entry]

    return train


@pytest.fixture(scope="module")
def plain(losses):
    return losses("--optim", "adamw_torch")


def test_a_training_of_twenty_steps(plain):
    assert len(plain) == STEPS
    assert abs(plain[0] - plain[-1]) > 0.05  # it learns, so that wrong steps would show


@pytest.mark.parametrize(
    "words, tolerance",
    [
        ((), 1e-3),  # the fused AdamW, the default
        (("--dataloader_num_workers", "1"), 1e-3),
        (("--bf16",), 0.05),
    ],
    ids=["fused AdamW", "worker", "bf16"],
)
def test_losses_are_those_of_the_plain_training(losses, plain, words, tolerance):
    assert losses(*words) == pytest.approx(plain, abs=tolerance)
