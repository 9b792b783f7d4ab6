"""Two processes on the CPU under torchrun: one process with twice the batch, and the same metrics."""

import os
import shutil
import socket
import subprocess
import sys

import pytest
import torch

from sot_base.errors import UsageError
from tests.support import REPOSITORY
from tests.vision.conftest import TINY, load, rows
from vision import train as train_module


def torchrun(folder, *words):
    """Run a script of vision/ in two processes; the completed process."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    command = [sys.executable, "-m", "torch.distributed.run", "--nproc_per_node", "2", "--master_port", str(port)]
    script, *rest = map(str, words)
    return subprocess.run(
        [*command, str(REPOSITORY / "vision" / script), *rest],
        capture_output=True,
        text=True,
        cwd=folder,
        env=os.environ | {"OMP_NUM_THREADS": "1"},
        timeout=600,
    )


@pytest.mark.e2e
@pytest.mark.slow
def test_two_processes_equal_one_with_twice_the_batch(images, train, tmp_path):
    """The first step's gradient, BatchNorm over both processes included; then validation by two processes."""
    common = ["--epochs", 1, "--max-steps", 1, "--opt", "momentum", "--momentum", 0, "--weight-decay", 0]
    common += ["--warmup-epochs", 0, "--aa", "rand-m9-mstd0.5-inc1"]
    start = load(train(images, *common, "-b", 8, "--lr", 0, name="start"))["state_dict"]
    one = train(images, *common, "-b", 8, "--lr", 1, name="one")
    process = torchrun(
        tmp_path, "train.py", images, *TINY, *common, "-b", 4, "--lr", 1, "--output", "runs", "--experiment", "two"
    )
    assert process.returncode == 0, process.stderr[-3000:]
    assert process.stdout.count("best top-1") == 1
    alone, together = load(one), load(tmp_path / "runs" / "two")
    assert together["images_per_step"] == 8
    for name, value in alone["state_dict"].items():
        found = together["state_dict"][name]
        if not name.endswith("num_batches_tracked"):
            torch.testing.assert_close(found - start[name], value - start[name], rtol=1e-5, atol=1e-5, msg=name)
    assert not torch.equal(alone["state_dict"]["head.word_fc.weight"], start["head.word_fc.weight"])

    checkpoint = tmp_path / "runs" / "two" / "last.pth.tar"
    data = shutil.copytree(images, tmp_path / "data")
    for name in ("more.png", "one.png"):  # after those of the class: one for each process
        (data / "val" / "owl" / name).write_bytes(b"text")
    words = ["--checkpoint", checkpoint, "-b", 2, "-j", 0, "--device", "cpu", "--results", "results.json"]
    process = torchrun(tmp_path, "validate.py", data, *words, "--bad-images", "skip")
    assert process.returncode == 0, process.stderr[-3000:]
    (row,) = rows(tmp_path / "runs" / "two")
    assert f"top-1 {float(row['eval_top1']):.2f} %" in process.stdout
    assert "6 images" in process.stdout
    assert "bad_images: 2" in process.stdout
    assert process.stdout.count("top-1") == 1


def test_the_demonstration_is_for_one_process(monkeypatch):
    for name, value in {"RANK": "1", "LOCAL_RANK": "1", "WORLD_SIZE": "2"}.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(UsageError, match="the demonstration runs in one process; give DIR or --dataset to torchrun"):
        train_module.main([])
