"""Kill ``fairseq-train`` while it writes each of its files, start it again, and compare with an uninterrupted run.

    OMP_NUM_THREADS=1 python -m tests.sot_fairseq.killed_training DATA FOLDER --times 10

The kill is not a matter of time: the process kills itself when so many bytes of a file are written, or when it is about
to give the file its name. Every training is forked from this process, which imports fairseq once and trains nothing.
"""

import argparse
import builtins
import io
import json
import os
import re
import signal
import sys
import traceback
from pathlib import Path

import torch
from fairseq_cli.train import cli_main

from sot_base.safe_checkpoint import read_checkpoint
from tests.sot_fairseq.conftest import command

CHECKPOINTS = ("checkpoint1.pt", "checkpoint_2_12.pt", "checkpoint.best_accuracy_*.pt", "checkpoint_best.pt")
DESCRIPTION = ("preprocess.json", "dict.txt", "vocab.txt")
FILES = (*CHECKPOINTS, "checkpoint_last.pt", *DESCRIPTION)
OPTIONS = (
    *("--max-epoch", "3", "--dropout", "0.3", "--best-checkpoint-metric", "accuracy"),
    *("--maximize-best-checkpoint-metric", "--save-interval-updates", "4", "--keep-best-checkpoints", "2"),
    *("--patience", "20"),
)


class KillingFile:
    """A file that kills the process when it holds so many bytes."""

    def __init__(self, file, limit):
        self.file, self.left = file, limit

    def write(self, data):
        data = memoryview(data).cast("B")
        if len(data) > self.left:
            self.file.write(data[: self.left])
            self.file.flush()
            kill()
        self.left -= len(data)
        return self.file.write(data)

    def __enter__(self):
        return self

    def __exit__(self, *error):
        self.file.close()

    def fileno(self):
        raise OSError("no fast copy: every byte comes through write")

    def __getattr__(self, name):
        return getattr(self.file, name)


def kill():
    os.kill(os.getpid(), signal.SIGKILL)


def arm(folder, name, share, sizes):
    """Kill this process in the second writing of a file, or in the only one; ``share`` 1 is before it gets its name."""
    pattern = re.compile(re.escape(f"{name}").replace(r"\*", ".*"))
    seen = {"open": 0}
    last = 1 if name in DESCRIPTION or re.fullmatch(r"checkpoint(\d+|_\d+_\d+)\.pt", name) else 2
    stock_open, stock_replace = io.open, os.replace

    def matches(path):
        if not isinstance(path, (str, os.PathLike)) or folder not in Path(path).parents:
            return False
        return pattern.fullmatch(re.sub(r"^\.(.*)\.[^.]+\.unfinished$", r"\1", Path(path).name)) is not None

    def killing_open(path, mode="r", *args, **kwargs):
        file = stock_open(path, mode, *args, **kwargs)
        if set(mode) & set("wx+") and matches(path):
            seen["open"] += 1
            if seen["open"] == last and share < 1:
                return KillingFile(file, int(share * sizes[name]))
        return file

    def killing_replace(source, target, **kwargs):
        if matches(source) and seen["open"] == last:
            kill()
        stock_replace(source, target, **kwargs)

    io.open = builtins.open = killing_open
    os.replace = os.rename = killing_replace


def train(data, folder, log, killed=None, options=OPTIONS):
    """Train in a process of its own; returns its status, negative for a signal."""
    process = os.fork()
    if process == 0:
        status = 1
        try:
            with open(log, "ab") as stream:
                for number in (1, 2):
                    os.dup2(stream.fileno(), number)
            if killed is not None:
                arm(folder, *killed)
            sys.argv = ["fairseq-train", *command(data, folder, *options)]
            sys.argv.remove("--no-epoch-checkpoints")
            cli_main()
            status = 0
        except SystemExit as end:
            status = end.code or 0
        except BaseException as error:
            traceback.print_exception(error)
        finally:
            sys.stdout.flush()
            os._exit(status)
    return os.waitstatus_to_exitcode(os.waitpid(process, 0)[1])


def contents(folder):
    """Every file of a folder; of a checkpoint what a training goes on from, without clock times."""
    found = {}
    for path in sorted(folder.rglob("*")):
        name = str(path.relative_to(folder))
        if path.suffix != ".pt":
            found[name] = path.read_bytes() if path.is_file() else None
            continue
        state = read_checkpoint(path, lazy=False)
        del state["cfg"]  # names its own folder
        state["optimizer_history"] = state["optimizer_history"][-1]  # fairseq adds an entry at each start
        for clock in ("metrics", "previous_training_time"):
            del state["extra_state"][clock]
        found[name] = state
    return found


def differences(left, right, where=""):
    """Where two structures differ; tensors must agree bit by bit."""
    if type(left) is not type(right):
        return [f"{where}: {type(left)} and {type(right)}"]
    if isinstance(left, dict):
        missing = [f"{where}/{key} is in one alone" for key in left.keys() ^ right.keys()]
        return missing + [
            d for key in left.keys() & right.keys() for d in differences(left[key], right[key], f"{where}/{key}")
        ]
    if isinstance(left, (list, tuple)) and len(left) == len(right):
        return [
            d
            for number, pair in enumerate(zip(left, right, strict=True))
            for d in differences(*pair, f"{where}/{number}")
        ]
    same = torch.equal(left, right) if isinstance(left, torch.Tensor) else left == right
    return [] if same else [f"{where} differs"]


def trial(data, folder, killed, whole):
    """Kill a training at a point, go on, and return what is not as it should be."""
    log = folder.with_name(f"{folder.name}.log")
    status = train(data, folder, log, killed)
    if status != -signal.SIGKILL:
        return [f"status {status} where a kill was to be"]
    status = train(data, folder, log)
    if status:
        return [f"the restart ended with status {status}: {log}"]
    return differences(contents(folder), whole)


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("data", type=Path, help="preprocessed data")
    parser.add_argument("folder", type=Path, help="for the trainings")
    parser.add_argument("--times", type=int, default=10, help="kills of each file")
    parser.add_argument("--files", nargs="+", default=FILES, help="which files")
    args = parser.parse_args()
    folder = args.folder.resolve()
    folder.mkdir(parents=True, exist_ok=True)
    if status := train(args.data, folder / "whole", folder / "whole.log"):
        raise SystemExit(f"the uninterrupted training ended with status {status}")
    whole = contents(folder / "whole")
    failed = {}
    for name in args.files:
        sizes = {name: max(path.stat().st_size for path in (folder / "whole").rglob(name))}
        for number in range(args.times):
            share = number / (args.times - 1) if args.times > 1 else 0.5
            problems = trial(args.data, folder / f"{name.replace('*', 'x')}-{number}", (name, share, sizes), whole)
            if problems:
                failed[f"{name}, killed at {share:.0%}"] = problems[:5]
        print(f"{name}: {args.times} kills, {sum(key.startswith(name) for key in failed)} failed", flush=True)
    print(json.dumps(failed, indent=2))
    raise SystemExit(bool(failed))


if __name__ == "__main__":
    main()
