"""Two processes on the CPU (gloo): one model, metrics over both, checkpoints sent from the first to the second."""

import json
import os
import random
import re
import shutil
import socket
import subprocess
import sys
from pathlib import Path

import pytest
import torch

import sot_fairseq
from sot_base.safe_checkpoint import read_checkpoint
from tests.sot_fairseq.conftest import command, preprocess_folder, run_train, sentence, write_rows
from tests.support import REPOSITORY

pytestmark = pytest.mark.e2e
BEST = ("--best-checkpoint-metric", "mcc", "--maximize-best-checkpoint-metric")


def start(words, **environment):
    program = str(Path(sys.executable).parent / "fairseq-train")
    return subprocess.Popen(
        [program, *words],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env={**os.environ, "OMP_NUM_THREADS": "1", **environment},
    )


def run_two(data, save_dir, *words):
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    processes = [
        start(
            [
                *command(data, save_dir, *words),
                *("--distributed-world-size", "2", "--distributed-rank", str(rank), "--distributed-no-spawn"),
                *("--distributed-init-method", f"tcp://127.0.0.1:{port}"),
                *("--distributed-backend", "gloo", "--ddp-backend", "legacy_ddp"),
            ]
        )
        for rank in (0, 1)
    ]
    outputs = [process.communicate(timeout=300)[0] for process in processes]
    for process, output in zip(processes, outputs, strict=True):
        assert process.returncode == 0, output[-3000:]
    return outputs[0]


def test_two_processes_measure_the_whole_dev_set_and_resume(data, tmp_path):
    """23 rows in batches of 7: four batches, so the second process gets one row less than its share."""
    words = (*BEST, "--batch-size-valid", "7", "--max-epoch", "2", "--lr", "0.01", "--dropout", "0")
    run_two(data, tmp_path, *words, "--max-update", "3")
    output = run_two(data, tmp_path, *words, "--max-update", "8")  # goes on from the checkpoint, sent to process 1
    assert "Loaded checkpoint" in output
    state = read_checkpoint(tmp_path / "checkpoint_last.pt", lazy=False)
    assert state["optimizer_history"][-1]["num_updates"] == 8

    predictor = sot_fairseq.from_pretrained(tmp_path, "checkpoint_last.pt")
    expected = predictor.evaluate(data, metrics=["accuracy", "f1", "mcc"])
    assert state["extra_state"]["val_loss"] == pytest.approx(expected["mcc"], abs=1e-9)
    logged = re.findall(r"valid on 'valid' subset.*accuracy ([\d.]+) \| f1 ([\d.]+)", output)[-1]
    assert [float(value) for value in logged] == pytest.approx([expected["accuracy"], expected["f1"]], rel=1e-5)


def test_communication_has_ended_when_a_process_exits(data, tmp_path, monkeypatch):
    hook = (
        "import atexit, sys; atexit.register(lambda: print('open:', sys.modules['torch'].distributed.is_initialized()))"
    )
    (tmp_path / "sitecustomize.py").write_text(hook)
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(filter(None, (str(tmp_path), os.environ.get("PYTHONPATH")))))
    assert "open: False" in run_two(data, tmp_path / "run", *BEST, "--max-update", "1")


def test_two_processes_train_the_model_of_one_with_twice_the_update_frequency(data, tmp_path):
    words = (*BEST, "--dropout", "0", "--attention-dropout", "0", "--max-epoch", "2", "--clip-norm", "1")
    words += ("--head-lr-scale", "3", "--layer-decay", "0.9")
    run_two(data, tmp_path / "two", *words)
    one = run_train(data, tmp_path / "one", *words, "--update-freq", "2")
    two = read_checkpoint(tmp_path / "two" / "checkpoint_last.pt", lazy=False)
    assert two["optimizer_history"][-1]["num_updates"] == one["optimizer_history"][-1]["num_updates"] == 10
    for name, value in one["model"].items():
        torch.testing.assert_close(two["model"][name], value, rtol=0, atol=1e-5, msg=name)
    assert two["extra_state"]["val_loss"] == pytest.approx(one["extra_state"]["val_loss"], abs=1e-9)


def test_regression_is_measured_over_both_processes(score_data, tmp_path):
    best = ("--best-checkpoint-metric", "pearson_and_spearman", "--maximize-best-checkpoint-metric")
    run_two(score_data, tmp_path, *best, "--regression-target", "--batch-size-valid", "3")
    state = read_checkpoint(tmp_path / "checkpoint_last.pt", lazy=False)
    predictor = sot_fairseq.from_pretrained(tmp_path, "checkpoint_last.pt")
    expected = predictor.evaluate(score_data, metrics=["pearson_and_spearman"], batch_size=1)
    assert state["extra_state"]["val_loss"] == pytest.approx(expected["pearson_and_spearman"], abs=1e-3)


def test_both_dev_sets_of_mnli_are_measured_over_both_processes(tmp_path):
    rng = random.Random(6)
    for name, count in (("train", 20), ("dev_matched", 11), ("dev_mismatched", 8)):
        labels = [rng.choice(["entailment", "neutral", "contradiction"]) for _ in range(count)]
        rows = [(sentence(rng), sentence(rng), label) for label in labels]
        write_rows(tmp_path / f"{name}.tsv", ("sentence1", "sentence2", "gold_label"), rows)
    data = preprocess_folder(tmp_path, tmp_path / "bin", "--task", "MNLI")
    output = run_two(data, tmp_path / "run", "--batch-size-valid", "3", "--valid-subset", "valid,valid1")
    predictor = sot_fairseq.from_pretrained(tmp_path / "run", "checkpoint_last.pt")
    for split in ("valid", "valid1"):
        (logged,) = re.findall(rf"valid on '{split}' subset.*accuracy ([\d.]+) \| f1 ([\d.]+)", output)
        expected = predictor.evaluate(data, split, metrics=["accuracy", "f1"])
        assert [float(value) for value in logged] == pytest.approx(list(expected.values()), rel=1e-5)


def test_torchrun_on_the_cpu_is_refused_with_what_to_do(data, tmp_path):
    process = start(command(data, tmp_path), WORLD_SIZE="2", RANK="1", MASTER_ADDR="127.0.0.1", MASTER_PORT="1")
    output, _ = process.communicate(timeout=120)
    assert process.returncode == 2
    (error,) = [line for line in output.splitlines() if line.startswith("error: ")]
    assert "--distributed-world-size N" in error
    assert "Traceback" not in output
    assert not (tmp_path / "checkpoint_last.pt").exists()


def test_a_mistake_ends_fairseq_train_with_status_2_and_one_line(data, tmp_path):
    process = start(command(data, tmp_path, "--restore-file", "nowhere.pt"))
    output, _ = process.communicate(timeout=120)
    assert process.returncode == 2
    assert (
        output.splitlines()[-1]
        == f"error: no such checkpoint: --restore-file {Path('nowhere.pt').absolute()}; check the path"
    )
    assert "Traceback" not in output


CONFIG = """
common: {user_dir: %s, cpu: true}
task: {_name: sentence_prediction_mgcrp, data: "???", mgcrp_heads: 2, mgcrp_q: 4, mgcrp_k: 3, max_positions: 32}
criterion: {_name: sentence_prediction_mgcrp}
model:
  {_name: roberta, encoder_layers: 1, encoder_embed_dim: 16, encoder_ffn_embed_dim: 16, encoder_attention_heads: 2}
dataset: {batch_size: 7, num_workers: 0}
optimizer: {_name: adam}
lr_scheduler: {_name: fixed}
optimization: {lr: [0.003], max_update: 3}
checkpoint: {save_dir: run, no_epoch_checkpoints: true}
"""


def run_hydra(folder, *overrides):
    program = str(Path(sys.executable).parent / "fairseq-hydra-train")
    words = [program, "--config-dir", str(folder), "--config-name", "tiny", *overrides]
    environment = {**os.environ, "OMP_NUM_THREADS": str(torch.get_num_threads())}  # as in this process
    return subprocess.run(words, cwd=folder, env=environment, capture_output=True, text=True, timeout=120)


def test_hydra_gives_the_same_model_from_relative_paths(data, tmp_path):
    """hydra goes to a new folder before it starts; a relative path still means the folder of the start."""
    folder = tmp_path / "a folder"
    folder.mkdir()
    shutil.copytree(data, folder / "data bin")
    (folder / "tiny.yaml").write_text(CONFIG % (REPOSITORY / "sot_fairseq"))
    run = run_hydra(folder, "task.data='data bin'")
    assert run.returncode == 0, run.stdout[-3000:] + run.stderr[-3000:]
    state = read_checkpoint(folder / "run" / "checkpoint_last.pt", lazy=False)
    expected = run_train(data, tmp_path / "cli", "--max-update", "3")
    assert state["model"].keys() == expected["model"].keys()
    assert all(torch.equal(value, expected["model"][name]) for name, value in state["model"].items())
    assert state["task_state"] == expected["task_state"]

    run = run_hydra(folder, "task.data=nowhere", "checkpoint.save_dir=other")
    assert run.returncode == 2
    assert run.stderr.splitlines()[-1].startswith(f"error: no dictionary: {folder}/nowhere/input0/dict.txt; ")
    assert "Traceback" not in run.stdout + run.stderr


def test_the_path_command_prints_the_user_dir():
    run = subprocess.run([sys.executable, "-m", "sot_fairseq.path"], capture_output=True, text=True, check=True)
    folder = Path(run.stdout.strip())
    assert (folder / "tasks" / "sentence_prediction_mgcrp.py").is_file()


def test_a_plain_install_predicts_outside_the_repository(data, tmp_path):
    """Not editable, another working directory, only the folder of the checkpoints."""
    run_train(data, tmp_path / "run", "--max-update", "3")
    target = tmp_path / "site"
    pip = [sys.executable, "-m", "pip", "install", "-q", "--no-deps", "--no-build-isolation", "--target", str(target)]
    copy = tmp_path / "source"
    shutil.copytree(
        REPOSITORY, copy, ignore=shutil.ignore_patterns(".git", ".venv", "out", "*.egg-info", "build", "__pycache__")
    )
    subprocess.run([*pip, str(copy)], check=True)
    shutil.rmtree(copy)
    (tmp_path / "run").rename(tmp_path / "moved")
    program = (
        "import json, sys, sot_fairseq; p = sot_fairseq.from_pretrained(sys.argv[1], 'checkpoint_last.pt'); "
        "print(json.dumps([sot_fairseq.__file__, p.predict(['the cat', 'not a dog', ''])]))"
    )
    environment = {**os.environ, "PYTHONPATH": str(target), "OMP_NUM_THREADS": "1"}
    run = subprocess.run(
        [sys.executable, "-c", program, str(tmp_path / "moved")],
        capture_output=True,
        text=True,
        cwd=tmp_path,
        env=environment,
    )
    assert run.returncode == 0, run.stderr
    file, predictions = json.loads(run.stdout)
    assert file.startswith(str(target))
    expected = sot_fairseq.from_pretrained(tmp_path / "moved", "checkpoint_last.pt").predict(
        ["the cat", "not a dog", ""]
    )
    for (label, probabilities), prediction in zip(predictions, expected, strict=True):
        assert label == prediction.label
        assert probabilities == pytest.approx(prediction.probabilities, abs=1e-6)
