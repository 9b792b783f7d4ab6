"""Runs that are started again: from which checkpoint they go on, and when they are finished."""

import logging
import os
import shutil
import signal
import subprocess
import sys

import psutil
import pytest
import torch

from sot_base.errors import UsageError
from sot_base.safe_checkpoint import read_checkpoint
from sot_fairseq.fairseq_patches.restart import find_restart, newest_checkpoint
from tests.sot_fairseq.conftest import command, run_train
from tests.sot_fairseq.killed_training import FILES, contents, differences
from tests.sot_fairseq.training_process import PROGRAM, read_until, start, two_processes, wait_until
from tests.support import REPOSITORY

BEST = ("--best-checkpoint-metric", "accuracy", "--maximize-best-checkpoint-metric")


def updates(state):
    return state["optimizer_history"][-1]["num_updates"]


@pytest.fixture(scope="module")
def epochs(data, tmp_path_factory):
    """A run of two epochs (9 updates each) that saves every 6 updates, and its epochs."""
    folder = tmp_path_factory.mktemp("epochs") / "run"
    for_epochs = [word for word in command(data, folder, *BEST, "--max-epoch", "2") if word != "--no-epoch-checkpoints"]
    subprocess.run([PROGRAM, *for_epochs, "--save-interval-updates", "6"], check=True, capture_output=True)
    assert {path.name for path in folder.glob("*.pt")} >= {"checkpoint1.pt", "checkpoint2.pt", "checkpoint_1_6.pt"}
    return folder


class TestWholeCheckpoints:
    def test_the_newest_is_that_of_most_updates(self, epochs, tmp_path):
        shutil.copytree(epochs, tmp_path / "run")
        for name in ("last", "best"):
            (tmp_path / "run" / f"checkpoint_{name}.pt").unlink()
        assert newest_checkpoint(tmp_path / "run")[1:] == (3, 18)
        (tmp_path / "run" / "checkpoint2.pt").write_bytes(b"")
        assert str(newest_checkpoint(tmp_path / "run")) == f"{tmp_path}/run/checkpoint_2_12.pt (epoch 2 @ 12 updates)"
        torch.save({"other": 1}, tmp_path / "run" / "checkpoint_9_99.pt")
        (tmp_path / "run" / "checkpoint_mine.pt").write_bytes((epochs / "checkpoint2.pt").read_bytes())  # a user's own
        assert newest_checkpoint(tmp_path / "run").updates == 12
        assert newest_checkpoint(tmp_path / "absent") is None

    @pytest.mark.parametrize("size", [0, 3000, None])
    def test_a_damaged_or_absent_last_one(self, data, epochs, tmp_path, caplog, size):
        run = tmp_path / "run"
        shutil.copytree(epochs, run)
        last = run / "checkpoint_last.pt"
        content = last.read_bytes()
        last.unlink() if size is None else last.write_bytes(content[:size])
        (run / "checkpoint2.pt").unlink()  # the newest whole one is that of 12 updates
        (run / "checkpoint_best.pt").unlink()
        state = run_train(data, run, *BEST, "--max-epoch", "2", "--finetune-from-model", epochs / "checkpoint1.pt")
        (warning,) = [record.getMessage() for record in caplog.records if "resuming from" in record.getMessage()]
        assert (
            f"resuming from {run}/checkpoint_2_12.pt (epoch 2 @ 12 updates); to start from scratch, give another"
            in warning
        )
        assert ("there is no checkpoint_last.pt" if size is None else f"{last}") in warning
        whole = read_checkpoint(epochs / "checkpoint_last.pt", lazy=False)
        assert updates(state) == 18
        assert not differences(state["model"], whole["model"])
        assert state["cfg"]["checkpoint"]["restore_file"] == "checkpoint_last.pt"  # as the command line has it

    def test_a_whole_last_one_goes_first(self, epochs, tmp_path):
        shutil.copytree(epochs, tmp_path / "run")
        shutil.copyfile(epochs / "checkpoint1.pt", tmp_path / "run" / "checkpoint_last.pt")  # a user went back
        restart, reason = find_restart(tmp_path / "run")
        assert (restart.updates, reason) == (9, "")

    def test_nothing_to_go_on_from(self, tmp_path):
        assert find_restart(tmp_path)[0] is None
        (tmp_path / "checkpoint_last.pt").write_bytes(b"PK")
        with pytest.raises(
            UsageError, match=r"cannot resume: .*checkpoint_last\.pt; .* or remove it to start from scratch"
        ):
            find_restart(tmp_path)

    def test_what_a_killed_run_was_writing_is_removed(self, data, tmp_path):
        left = [tmp_path / name for name in (".checkpoint_last.pt.ab12.unfinished", "label/.dict.txt.x.unfinished")]
        for path in left:
            path.parent.mkdir(exist_ok=True)
            path.write_bytes(b"half")
        run_train(data, tmp_path, *BEST, "--max-update", "1")
        assert not any(path.exists() for path in left)

    def test_copies_are_ordinary_files_and_folders(self, data, tmp_path):
        source = tmp_path / "data"
        shutil.copytree(data, source)
        for path in [source, *source.rglob("*")]:
            path.chmod(0o555 if path.is_dir() else 0o444)
        try:
            for _ in range(2):
                run_train(source, tmp_path / "run", *BEST, "--max-update", "1")
        finally:
            for path in [source, *source.rglob("*")]:
                path.chmod(0o755)
        modes = {path.stat().st_mode & 0o200 for path in (tmp_path / "run").rglob("*")}
        assert modes == {0o200}

    @pytest.mark.slow
    @pytest.mark.e2e
    def test_a_kill_while_a_file_is_written(self, kills, data, tmp_path):
        some = (
            "checkpoint1.pt",
            "checkpoint.best_accuracy_*.pt",
            "checkpoint_best.pt",
            "checkpoint_last.pt",
            "dict.txt",
        )
        files = FILES if kills else some
        words = [
            "-m",
            "tests.sot_fairseq.killed_training",
            data,
            tmp_path,
            "--times",
            str(kills or 1),
            "--files",
            *files,
        ]
        done = subprocess.run(
            [sys.executable, *words],
            capture_output=True,
            text=True,
            cwd=REPOSITORY,
            env={**os.environ, "OMP_NUM_THREADS": "1"},
            check=False,
        )
        assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
        lines = [line for line in done.stdout.splitlines() if " kills, " in line]
        print("\n".join(lines))
        assert lines == [f"{name}: {kills or 1} kills, 0 failed" for name in files]


class TestTheEnd:
    def test_patience_is_counted_over_restarts(self, data, tmp_path, caplog):
        words = (*BEST, "--lr", "0", "--patience", "2", "--no-epoch-checkpoints")
        run_train(data, tmp_path, *words, "--max-epoch", "2")  # the first result is the best, one without a better one
        saved = read_checkpoint(tmp_path / "checkpoint_last.pt", lazy=False)["extra_state"]
        assert saved["SentencePredictionMGCrPTask"]["early_stopping"]["num_runs"] == 1
        state = run_train(data, tmp_path, *words, "--max-epoch", "40")
        assert updates(state) == 27
        for _ in range(2):
            caplog.clear()
            assert updates(run_train(data, tmp_path, *words, "--max-epoch", "40")) == 27
            assert "nothing is left to train: no better result in 2 validations, --patience is 2" in caplog.text
        assert updates(run_train(data, tmp_path, *words, "--max-epoch", "40", "--patience", "3")) == 36

    def test_another_training_of_the_process_has_a_patience_of_its_own(self, data, tmp_path):
        words = (*BEST, "--lr", "0", "--patience", "1", "--max-epoch", "9")
        assert [updates(run_train(data, tmp_path / name, *words)) for name in "ab"] == [18, 18]

    @pytest.mark.parametrize(
        "limit, message",
        [
            (("--max-update", "5"), "nothing is left to train: 5 updates are done, --max-update is 5"),
            (("--stop-time-hours", "1e-9"), "hours are used, --stop-time-hours is 1e-09"),
        ],
    )
    def test_a_finished_run_trains_no_further(self, data, tmp_path, caplog, limit, message):
        before = run_train(data, tmp_path, *BEST, *limit)
        assert message not in caplog.text
        after = run_train(data, tmp_path, *BEST, *limit)
        assert message in caplog.text
        assert updates(before) == updates(after)
        assert not differences(before["model"], after["model"])


@pytest.mark.slow
@pytest.mark.e2e
class TestSignals:
    def finish(self, process):
        output, _ = process.communicate(timeout=300)
        return process.returncode, output

    def test_the_update_is_saved_and_the_run_goes_on_bitwise(self, data, tmp_path):
        """The signal goes to the loading processes, too, as from a cluster."""
        words = command(data, tmp_path / "run", *BEST, "--max-epoch", "4", "--dropout", "0.3", "--num-workers", "1")
        words += ["--save-interval", "4"]  # at the end alone
        process = start(words)
        read = read_until(process.stdout, "begin training epoch 2")
        os.killpg(process.pid, signal.SIGTERM)
        os.killpg(process.pid, signal.SIGTERM)  # once more does no harm
        status, output = self.finish(process)
        assert (status, "Traceback" in read + output) == (143, False), output[-3000:]
        assert "stopped by signal 15 at update" in output
        stopped = updates(read_checkpoint(tmp_path / "run" / "checkpoint_last.pt", lazy=False))
        assert 9 < stopped < 36
        assert self.finish(start(words))[0] == 0
        whole = run_train(data, tmp_path / "whole", *BEST, "--max-epoch", "4", "--dropout", "0.3")
        found = contents(tmp_path / "run")["checkpoint_last.pt"]
        assert not differences(found["model"], whole["model"])
        assert not differences(found["last_optimizer_state"], whole["last_optimizer_state"])

    def test_both_processes_stop_at_the_same_update(self, data, tmp_path):
        commands = two_processes(data, tmp_path, *BEST, "--max-epoch", "2000", "--save-interval", "9999")
        first, second = (start(words) for words in commands)
        read_until(first.stdout, "begin training epoch 2")
        os.kill(second.pid, signal.SIGHUP)
        ends = [self.finish(process) for process in (first, second)]
        assert [status for status, _ in ends] == [129, 129], ends[0][1][-2000:] + ends[1][1][-2000:]
        assert updates(read_checkpoint(tmp_path / "checkpoint_last.pt", lazy=False)) >= 5

    def test_ctrl_c_is_one_line(self, data, tmp_path):
        process = start(command(data, tmp_path, *BEST, "--max-epoch", "2000", "--num-workers", "1"))
        read_until(process.stdout, "begin training epoch 2")
        children = psutil.Process(process.pid).children(recursive=True)
        os.killpg(process.pid, signal.SIGINT)
        status, output = self.finish(process)
        assert (status, "Traceback" in output) == (130, False), output[-3000:]
        assert output.splitlines()[-1] == "interrupted"
        assert children
        wait_until(lambda: not any(child.is_running() for child in children))

    def test_processes_and_open_files_stay_flat(self, data, tmp_path):
        process = start(
            command(data, tmp_path, *BEST, "--max-epoch", "20", "--num-workers", "1", "--save-interval", "99")
        )
        watched, counts = psutil.Process(process.pid), []
        for epoch in range(1, 21):
            read_until(process.stdout, f"begin training epoch {epoch}\n")
            counts.append((len(watched.children(recursive=True)), watched.num_fds()))
        assert self.finish(process)[0] == 0
        assert max(children for children, _ in counts) <= 2  # one for training, one for validation
        early, late = counts[1:7], counts[-6:]  # between them 14 epochs; the batches on their way are files, too
        assert min(files for _, files in late) <= min(files for _, files in early) + 8


def test_asynchronous_writing_is_ignored_with_a_warning(data, tmp_path):
    words = command(data, tmp_path, *BEST, "--max-update", "1", "--write-checkpoints-asynchronously")
    done = subprocess.run([PROGRAM, *words], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    assert "--write-checkpoints-asynchronously is ignored" in done.stdout + done.stderr
    assert (tmp_path / "checkpoint_last.pt").is_file()


def test_the_log_of_a_resume_names_no_other_file(data, tmp_path, caplog):
    run_train(data, tmp_path, *BEST, "--max-update", "1")
    with caplog.at_level(logging.WARNING):
        run_train(data, tmp_path, *BEST, "--max-update", "2")
    assert "resuming from" not in caplog.text
