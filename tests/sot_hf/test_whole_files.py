"""Runs that are killed or have no room: files are whole or absent, and the next run goes on."""

import os
import resource
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
import torch

from sot_base.errors import UsageError
from sot_hf.run_glue import main
from tests.sot_hf.kills import FILES, MOVES, files_of
from tests.sot_hf.test_run_glue import weights, words

RUN = ("--task_name", "RTE", "--do_train", "--do_eval", "--num_train_epochs", "2", "--head-fusion", "cls")
RESUME = ("--resume_from_checkpoint", "last")


@pytest.fixture(scope="module")
def whole(bert_folder, rte, tmp_path_factory):
    output = tmp_path_factory.mktemp("whole") / "out"
    main(words(bert_folder, rte, output, *RUN))
    return output


@pytest.mark.slow
def test_a_run_killed_in_any_file_goes_on_to_the_same_end(kills, bert_folder, rte, tmp_path):
    names = (*FILES, *MOVES) if kills else ("model.safetensors", "optimizer.pt", "trainer_state.json", "RTE.tsv")
    words = ["-m", "tests.sot_hf.kills", bert_folder, rte, tmp_path, "--times", str(kills or 2), "--only", *names]
    command = [sys.executable, *words]
    root = Path(__file__).parents[2]
    path = os.pathsep.join([str(root), os.environ.get("PYTHONPATH", "")])
    done = subprocess.run(command, cwd=root, env={**os.environ, "PYTHONPATH": path}, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-2000:]
    print(done.stdout)
    lines = done.stdout.splitlines()
    assert [line.partition(":")[0] for line in lines[:-1]] == list(names)
    if not kills:
        assert lines[-1] == "8 trials"


@pytest.mark.parametrize("kilobytes", [10, 30])
def test_files_beyond_the_limit_leave_nothing_half_written(kilobytes, whole, bert_folder, rte, tmp_path):
    """10 KB: the weights do not fit; 30 KB: the optimizer's state does not."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1024 * kilobytes, hard))
    try:
        with pytest.raises(
            UsageError, match=f"the disk is full, no checkpoint was written: {tmp_path}/checkpoint-6; free some"
        ) as error:
            main(words(bert_folder, rte, tmp_path, *RUN))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert "\n" not in str(error.value)
    assert files_of(tmp_path) == []
    main(words(bert_folder, rte, tmp_path, *RUN, *RESUME))  # the folder has no checkpoint yet: it starts
    assert files_of(tmp_path) == files_of(whole)
    expected = weights(whole)
    assert all(torch.equal(value, expected[name]) for name, value in weights(tmp_path).items())


def test_the_newest_whole_checkpoint_is_taken(whole, bert_folder, rte, tmp_path, caplog):
    shutil.copytree(whole, tmp_path, dirs_exist_ok=True)
    (tmp_path / "model.safetensors").unlink()
    last = max(tmp_path.glob("checkpoint-*"), key=lambda path: int(path.name.split("-")[1]))
    assert last.name == "checkpoint-12"
    shutil.copytree(whole / "checkpoint-12", tmp_path / "checkpoint-6", dirs_exist_ok=True)
    (last / "optimizer.pt").write_bytes((last / "optimizer.pt").read_bytes()[:99])
    main(words(bert_folder, rte, tmp_path, *RUN, *RESUME))
    (message,) = [message for message in caplog.messages if "resuming from" in message]
    assert message.startswith("not an intact checkpoint, optimizer.pt is cut off or broken")
    assert message.endswith("resuming from checkpoint-6")


def flip_a_bit(path):
    """In the largest record of a file of torch's."""
    with zipfile.ZipFile(path) as archive:
        record = max(archive.infolist(), key=lambda entry: entry.file_size)
    content = bytearray(path.read_bytes())
    content[record.header_offset + record.file_size // 2 + 100] ^= 4
    path.write_bytes(content)


def replace(path):
    torch.save({"state": [1], "param_groups": "none"}, path)


@pytest.mark.parametrize(
    "file, damage, message",
    [
        ("optimizer.pt", flip_a_bit, "optimizer.pt is cut off or broken"),
        ("optimizer.pt", replace, r"optimizer\.pt is damaged .*checkpoint-6; give another one"),
        ("scheduler.pt", lambda path: torch.save([1, 2], path), r"scheduler\.pt is damaged .*checkpoint-6"),
        ("rng_state.pth", lambda path: torch.save({"python": 1}, path), "rng_state is damaged .*checkpoint-6"),
    ],
)  # fmt: skip
def test_damaged_files_are_told_in_one_line(file, damage, message, whole, bert_folder, rte, tmp_path):
    shutil.copytree(whole / "checkpoint-6", tmp_path / "checkpoint-6")
    damage(tmp_path / "checkpoint-6" / file)
    with pytest.raises(UsageError, match=message) as error:
        main(words(bert_folder, rte, tmp_path, *RUN, *RESUME))
    assert "\n" not in str(error.value)


def test_what_a_killed_run_left_is_removed(whole, rte, tmp_path):
    for name in (".RTE.tsv.ab12cd34.unfinished", ".checkpoint-9.unfinished/checkpoint-9/optimizer.pt"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text("half")
    (tmp_path / ".notes").write_text("mine")
    main(words(whole, rte, tmp_path, "--task_name", "RTE", "--do_predict"))
    assert files_of(tmp_path) == [".notes", "RTE.tsv"]


def test_a_run_that_has_no_checkpoint_yet_starts(bert_folder, rte, tmp_path, caplog):
    short = ("--task_name", "RTE", "--do_train", "--max_steps", "1", "--save_strategy", "no", *RESUME)
    with pytest.raises(UsageError, match="no checkpoint to resume from"):
        main(words(bert_folder, rte, tmp_path / "mistyped", *short))
    (tmp_path / "out").mkdir()
    main(words(bert_folder, rte, tmp_path / "out", *short))
    assert any("has no checkpoint yet: training starts from the first step" in message for message in caplog.messages)
    with pytest.raises(UsageError, match="no checkpoint to resume from"):  # a finished run's model is not overwritten
        main(words(bert_folder, rte, tmp_path / "out", *short))


def test_a_finished_run_does_not_train_on(bert_folder, rte, tmp_path):
    """Six steps an epoch: the last one is within an epoch."""
    run = (
        "--task_name",
        "RTE",
        "--do_train",
        "--max_steps",
        "8",
        "--save_steps",
        "4",
        "--lr_scheduler_type",
        "constant",
    )
    main(words(bert_folder, rte, tmp_path, *run))
    before = weights(tmp_path)
    main(words(bert_folder, rte, tmp_path, *run, *RESUME))
    assert all(torch.equal(value, before[name]) for name, value in weights(tmp_path).items())
    assert not (tmp_path / "checkpoint-9").exists()


def test_old_checkpoints_go_and_the_best_one_stays(bert_folder, rte, tmp_path):
    run = ("--task_name", "RTE", "--do_train", "--do_eval", "--num_train_epochs", "3", "--learning_rate", "1e-12")
    main(words(bert_folder, rte, tmp_path / "one", *run, "--save_total_limit", "1"))
    assert [path.name for path in (tmp_path / "one").glob("checkpoint-*")] == ["checkpoint-6"]  # the first is the best
    main(words(bert_folder, rte, tmp_path / "all", *run, "--eval_all_checkpoints"))
    assert len(list((tmp_path / "all").glob("checkpoint-*"))) == 3
