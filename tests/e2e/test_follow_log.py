"""What the scripts print while a training writes its log."""

import io

import pytest

from glue_scripts import follow_log
from glue_scripts.follow_log import LogFollower, failure_reason

STEP = "2026-01-01 | INFO | train_inner | epoch 002:     30 / 78 loss=0.512, wps=10, ups=3, num_updates=108, lr=1e-05\n"
VALID = "2026-01-01 | INFO | valid | epoch 002 | valid on 'valid' subset | loss 0.9 | accuracy 71.5\n"


@pytest.fixture
def clock(monkeypatch):
    """A clock that the test sets."""
    now = [100.0]
    monkeypatch.setattr(follow_log.time, "monotonic", lambda: now[0])
    return now


def test_validations_at_once_and_progress_now_and_then(tmp_path, clock):
    log, out = tmp_path / "train.log", io.StringIO()
    log.write_text(VALID)  # of an earlier start
    follower = LogFollower(log, "mgcrp, seed 1", out)
    follower.look()
    clock[0] += 14
    with log.open("a") as stream:
        stream.write(STEP + VALID[:40])  # half a line so far
    follower.look()
    assert out.getvalue() == ""
    clock[0] += 2
    follower.look()
    follower.look()
    assert out.getvalue() == "mgcrp, seed 1: 0:16, epoch 2, update 30 of 78, loss 0.512\n"
    with log.open("a") as stream:
        stream.write(VALID[40:])
    follower.close()
    assert out.getvalue().splitlines()[1:] == [
        "mgcrp, seed 1: epoch 002 | valid on 'valid' subset | loss 0.9 | accuracy 71.5"
    ]
    clock[0] += 100
    follower.look()
    assert out.getvalue().splitlines()[-1] == "mgcrp, seed 1: 1:56, validated"


def test_the_log_of_transformers_trainer(tmp_path, clock):
    log, out = tmp_path / "train.log", io.StringIO()
    follower = LogFollower(log, "cls, seed 1", out)
    log.write_text("{'loss': '0.69', 'grad_norm': '1.2', 'learning_rate': '1e-05', 'epoch': '0.13'}\n")
    clock[0] += 16
    follower.look()
    with log.open("a") as stream:
        stream.write(
            "{'eval_loss': '0.6', 'eval_accuracy': '0.5', 'epoch': '1'}\n{'train_loss': '0.6', 'epoch': '1'}\n"
        )
    follower.close()
    assert out.getvalue().splitlines() == [
        "cls, seed 1: 0:16, epoch 0.13, loss 0.69",
        "cls, seed 1: epoch 1 | {'eval_loss': '0.6', 'eval_accuracy': '0.5', 'epoch': '1'}",
    ]


def test_a_terminal_has_one_line_that_moves(tmp_path, clock):
    class Terminal(io.StringIO):
        def isatty(self):
            return True

    out = Terminal()
    follower = LogFollower(tmp_path / "absent.log", "cls, seed 2", out)
    for _ in range(3):
        clock[0] += 1
        follower.look()
    follower.close()
    assert out.getvalue() == "".join(f"\r\x1b[Kcls, seed 2: 0:0{n}, starting" for n in (1, 2, 3)) + "\r\x1b[K"


@pytest.mark.parametrize(
    "text, status, reason",
    [
        ("x\nerror: no room: /a; make some\nlast\n", 2, "no room: /a; make some"),
        ("Traceback\nValueError: odd\n\n", 1, "ValueError: odd"),
        ("", 3, "status 3"),
        ("x\n", -11, "killed by signal 11"),
        ("x\n", -9, "killed by signal 9, perhaps out of memory"),
    ],
)
def test_why_a_training_failed(tmp_path, text, status, reason):
    log = tmp_path / "train.log"
    log.write_text("error: of an earlier start\n" + text)
    assert failure_reason(log, len("error: of an earlier start\n"), status) == reason
