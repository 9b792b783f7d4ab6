"""Fine-tune on GLUE tasks: every head with every seed, one after the other, and a table of dev metrics.

This is what the scripts of this folder run; `common.sh` turns their variables into options. A run is prepared
(`python -m sot_fairseq.prepare`, to which all other options are passed, and which downloads what is missing), its
trainings write ``<head>/seed-<n>/train.log``, and `python -m sot_fairseq.results` makes the table. For an encoder
``gpt`` or ``hf:...`` the package is `sot_hf`, not `sot_fairseq`. With ``--tasks`` each task has a folder of its own in
the output folder, there is one table of all, and everything is downloaded before the first training.

A training or a task that fails does not stop the others: the table has what finished, failures are named at the end
with their reasons, and the exit status is 1 (2 if nothing finished). Started again, the run resumes: finished
trainings are done, the others continue from their last checkpoint. SIGTERM, SIGHUP and Ctrl-C are passed on to the
training, which saves a checkpoint on the first two, and end the run with 128 plus the signal's number.

Where there is no GPU, fairseq's trainings and the evaluation are forks of this program, which imports what they need
once: that takes longer than a short training. Each is a process of its own all the same, and trains as a new one would.
"""

from __future__ import annotations

import argparse
import fcntl
import importlib
import os
import shlex
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import IO

from follow_log import LogFollower, failure_reason

from sot_base.atomic import atomic_file, remove_unfinished
from sot_base.children import Children, Process
from sot_base.errors import UsageError, run_main

FAILED = "failed.txt"  # beside the checkpoints of a training that failed: the reason
MODULES = {"fairseq-train": "sot_fairseq.train"}  # of commands that are not python -m MODULE


def main(arguments: Sequence[str] | None = None) -> int:
    """Run from the command line; returns the exit status."""
    arguments = list(sys.argv[1:] if arguments is None else arguments)
    end = arguments.index("--") if "--" in arguments else len(arguments)
    args, options = _parser().parse_known_args(arguments[:end])
    words = [*options, *arguments[end:]]
    with Children() as children:
        if args.task:
            return Run(children, args, args.task, args.output_dir, words).finish()
        return _run_tasks(children, args, words)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0], allow_abbrev=False)
    task = parser.add_mutually_exclusive_group(required=True)
    task.add_argument("--task", help="a GLUE task")
    task.add_argument("--tasks", nargs="+", metavar="TASK", help="several, each in a folder of its own")
    parser.add_argument("--output-dir", required=True, type=Path, help="the folder for everything that is written")
    parser.add_argument("--heads", nargs="+", required=True, help="mgcrp, gcp, gap or cls")
    parser.add_argument("--seeds", nargs="+", required=True, help="one training each")
    parser.add_argument("--encoder", required=True, help="what is fine-tuned")
    parser.add_argument("--dry-run", action="store_true", help="prepare the data, print the commands and stop")
    return parser


def _run_tasks(children: Children, args: argparse.Namespace, words: Sequence[str]) -> int:
    """Run several tasks and print one table; what they need is downloaded first."""
    side, prepare = _side(args.encoder), ["--output-dir", str(args.output_dir), "--encoder", args.encoder]
    process = children.start(_python(f"{side}.prepare", "--download", *args.tasks, *prepare, *words))
    if status := abs(children.wait(process)[0]):
        return status
    failed, folders = [], []
    for task in args.tasks:
        print(f"\n==== {task}", flush=True)  # noqa: T201
        folder = args.output_dir / task.lower()
        run = Run(children, args, task, folder, words)
        try:
            status = run.finish()
        except UsageError as error:
            sys.stderr.write(f"error: {error}\n")
            status = 2
        if status:
            failed.append(task)
        if run.finished:
            folders.append(str(folder))
    if folders and not args.dry_run:
        _say(f"dev results of {' '.join(folders)}")
        children.wait(children.start(_python(f"{side}.results", "--saved", *folders)))
    if failed:
        sys.stderr.write(
            f"error: these tasks failed, the reasons are above: {' '.join(failed)}; correct them and start again\n"
        )
    return 1 if failed else 0


class Run:
    """One task: its data and encoder, a training for each head and seed, and the table.

    Args:
        children: Starts the processes.
        args: The options of the command line.
        task: GLUE's name.
        folder: Where everything goes.
        words: Options of ``prepare``, and after ``--`` extra arguments for the training command.
    """

    def __init__(
        self, children: Children, args: argparse.Namespace, task: str, folder: Path, words: Sequence[str]
    ) -> None:
        self.children, self.args, self.task, self.folder, self.words = children, args, task, folder, words
        self.side = _side(args.encoder)
        self.finished: list[str] = []
        self.failed: dict[str, str] = {}

    def finish(self) -> int:
        """Run everything that is left; returns the exit status."""
        with _lock(self.folder) as self.lock:
            remove_unfinished(self.folder)
            if status := self._prepare():
                return status
            for head in self.args.heads:
                for seed in self.args.seeds:
                    self._train(head, seed)
            if self.args.dry_run:
                return 0
            status = self._show_results() if self.finished else 2
        if self.failed:
            reasons = "; ".join(f"{name} ({reason})" for name, reason in self.failed.items())
            trainings = len(self.finished) + len(self.failed)
            sys.stderr.write(
                f"error: {len(self.failed)} of {trainings} trainings of {self.task} failed: {reasons}; "
                "correct them and start again\n"
            )
        return status or bool(self.failed)

    def _prepare(self) -> int:
        words = ["--task", self.task, "--output-dir", str(self.folder), "--encoder", self.args.encoder]
        words += ["--heads", *self.args.heads, "--seeds", *self.args.seeds]
        return self._call(f"{self.side}.prepare", *words, *self.words)

    def _train(self, head: str, seed: str) -> None:
        save_dir, name = self.folder / head / f"seed-{seed}", f"{head}, seed {seed}"
        text = (save_dir / "command.txt").read_text(encoding="utf-8")
        _say(f"{self.task}, head {name}")
        print(text, end="", flush=True)  # noqa: T201
        if self.args.dry_run:
            return
        (save_dir / FAILED).unlink(missing_ok=True)
        log = save_dir / "train.log"
        follower = LogFollower(log, name)
        start = follower.place
        with log.open("ab") as stream:
            training = self._start(*_command(shlex.split(text)), output=stream)
            (status,) = self.children.wait(training, look=follower.look)
        follower.close()
        if not status:
            self.finished.append(name)
            return
        self.failed[name] = reason = failure_reason(log, start, status)
        with atomic_file(save_dir / FAILED) as path:
            path.write_text(reason + "\n", encoding="utf-8")
        sys.stderr.write(f"{name} failed: {reason}: {log}\n")

    def _show_results(self) -> int:
        _say(f"{self.task}: dev results")
        return abs(self.children.wait(self._start(f"{self.side}.results", str(self.folder)))[0])

    def _call(self, module: str, *words: str) -> int:
        process = self.children.start(_python(module, *words), pass_fds=[self.lock.fileno()])
        return abs(self.children.wait(process)[0])

    def _start(self, module: str, *words: str, output: IO[bytes] | None = None) -> Process:
        """Start ``python -m module words``, if possible as a fork."""
        if not _can_fork(module):
            command = _python(module, *words)
            return self.children.start(command, stdout=output, stderr=output, pass_fds=[self.lock.fileno()])

        def run() -> None:
            sys.argv = [module, *words]
            run_main(importlib.import_module(module).main)

        return self.children.fork(run, output)


def _can_fork(module: str) -> bool:
    """Import a module of fairseq's side; a GPU cannot be used in a fork of a process that has looked for it."""
    if not module.startswith("sot_fairseq."):
        return False
    importlib.import_module(module)
    import torch

    return not torch.cuda.is_available()


class _lock:  # noqa: N801  # a context manager
    """Lock a folder for this run; processes that inherit the lock keep it until they end."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def __enter__(self) -> _lock:
        self.folder.mkdir(parents=True, exist_ok=True)
        self.descriptor = os.open(self.folder / ".lock", os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o666)
        try:
            fcntl.flock(self.descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(self.descriptor)
            raise UsageError(
                f"another run is using the folder: {self.folder}; wait for it, or give another --output-dir (OUT_DIR)"
            ) from None
        return self

    def fileno(self) -> int:
        return self.descriptor

    def __exit__(self, *error: object) -> None:
        os.close(self.descriptor)


def _side(encoder: str) -> str:
    """The package that fine-tunes an encoder."""
    return "sot_hf" if encoder == "gpt" or encoder.startswith("hf:") else "sot_fairseq"


def _command(words: list[str]) -> list[str]:
    """Module and arguments of a command of ``command.txt``."""
    return words[2:] if words[0] == "python" else [MODULES[words[0]], *words[1:]]


def _python(module: str, *words: str) -> list[str]:
    return [sys.executable, "-m", module, *words]


def _say(text: str) -> None:
    print(f"\n== {text}", flush=True)  # noqa: T201


if __name__ == "__main__":
    run_main(main)
