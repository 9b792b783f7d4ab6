r"""Kill `run_glue` while it writes each of its files, run it again, and compare with a run that was not killed.

    python -m tests.sot_hf.kills MODEL DATA WORK [--times 10] [--only optimizer.pt] [--workers N]

A file is cut off after some part of its bytes (``--times 10``: none, a tenth, ... nine tenths) and the process gets
SIGKILL at that point; a move or a removal is killed before it happens. The second run has the same command line with
``--resume_from_checkpoint last``. It has to end with the same weights, optimizer, predictions and metrics as the run
that was not killed, and with the same files.

Trials are forks of one process that has imported everything. Prints a line for each kind and ends with the number of
trials.
"""

from __future__ import annotations

import argparse
import builtins
import io
import json
import os
import shutil
import signal
import sys
import traceback
from collections import Counter
from pathlib import Path

import safetensors.torch
import torch
import transformers.modeling_utils
from torch.testing import assert_close

from sot_hf import run_glue

RUN = "--task_name RTE --do_train --do_eval --do_predict --num_train_epochs 2 --save_steps 2 --eval_steps 2 "
RUN += "--save_total_limit 2 --eval_all_checkpoints --head-dropout 0.3 --use_cpu --disable_tqdm True "
RUN += "--learning_rate 3e-3 --per_device_train_batch_size 8"
CHECKPOINT = ("model.safetensors", "optimizer.pt", "scheduler.pt", "rng_state.pth", "trainer_state.json")
FILES = (*CHECKPOINT, "config.json", "tokenizer_config.json", "training_args.bin", "README.md", "train_results.json")
FILES += ("all_results.json", "eval_results.json", "eval_results_all.json", "RTE.tsv")
MOVES = ("os.rename", "os.remove", "os.rmdir")
NOT_COMPARED = ("runtime", "per_second", "train_loss", "flos", "preparation_time")


def die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


class Killer:
    """Counts what is written to a folder, and kills the process in the middle of it.

    Args:
        folder: The output folder.
        name: Name of a file, or one of `MOVES`.
        occurrence: Which of the writes of that name, from 1 on.
        share: How much of the file is written, of 1.
    """

    def __init__(self, folder: Path, name: str = "", occurrence: int = 0, share: float = 0.0) -> None:
        self.folder, self.name, self.occurrence, self.share = os.path.abspath(folder), name, occurrence, share
        self.counts: Counter[str] = Counter()

    def install(self) -> None:
        """Watch this process."""
        save, save_weights, opened = torch.save, safetensors.torch.save_file, io.open
        dump_weights = safetensors.torch.save

        def torch_save(content, path, *args, **kwargs):
            if self._due(path):
                buffer = io.BytesIO()
                save(content, buffer, *args, **kwargs)
                self._write_half(path, buffer.getvalue())
            save(content, path, *args, **kwargs)

        def weights_save(tensors, path, metadata=None):
            if self._due(path):
                self._write_half(path, dump_weights(tensors, metadata))
            save_weights(tensors, path, metadata)

        def open_file(path, mode="r", *args, **kwargs):
            if "w" in mode and "b" not in mode and self._due(path):
                stream = opened(path, mode, *args, **kwargs)
                return io.TextIOWrapper(_Half(stream.detach(), self.share), encoding="utf-8", write_through=True)
            return opened(path, mode, *args, **kwargs)

        torch.save = torch_save
        transformers.modeling_utils.safe_save_file = weights_save
        builtins.open = io.open = open_file
        sys.addaudithook(self._audit)

    def _due(self, path) -> bool:
        """Count a write; whether it is the one to die in."""
        if not isinstance(path, (str, os.PathLike)):
            return False
        text = os.path.abspath(path)
        if not text.startswith(self.folder + os.sep):
            return False
        name = os.path.basename(text)
        if name.endswith(".unfinished"):  # .RTE.tsv.ab12cd34.unfinished
            name = name.removeprefix(".").removesuffix(".unfinished").rpartition(".")[0]
        self.counts[name] += 1
        return name == self.name and self.counts[name] == self.occurrence

    def _write_half(self, path, content: bytes) -> None:
        Path(path).write_bytes(content[: int(self.share * len(content))])
        die()

    def _audit(self, event: str, arguments: tuple) -> None:
        if event not in MOVES or not isinstance(arguments[0], (str, os.PathLike)):
            return
        if os.path.abspath(arguments[0]).startswith(self.folder + os.sep):
            self.counts[event] += 1
            if event == self.name and self.counts[event] == self.occurrence:
                die()


class _Half(io.RawIOBase):
    """A file whose first write is cut off, and the last thing that happens."""

    def __init__(self, stream, share: float) -> None:
        self.stream, self.share = stream, share

    def writable(self) -> bool:
        return True

    def write(self, data) -> int:
        self.stream.write(bytes(data)[: int(self.share * len(data))])
        self.stream.flush()
        die()


def run(arguments: list[str], killer: Killer | None = None, counts: Path | None = None) -> int:
    """Run `run_glue` in a fork; gives what `os.waitpid` says of it."""
    sys.stdout.flush()
    child = os.fork()
    if child == 0:
        status = 1
        with open(os.devnull, "w") as nothing:
            os.dup2(nothing.fileno(), 1)
            if not os.environ.get("SHOW"):
                os.dup2(nothing.fileno(), 2)
        try:
            if killer is not None:
                killer.install()
            run_glue.main(arguments)
            if counts is not None and killer is not None:
                counts.write_text(json.dumps(killer.counts))
            status = 0
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(status)
    return os.waitpid(child, 0)[1]


def files_of(folder: Path) -> list[str]:
    """All files and folders, hidden ones, too."""
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*"))


def compare(found: Path, expected: Path) -> None:
    """Refuse a run that did not end as the other one."""
    assert files_of(found) == files_of(expected), set(files_of(found)) ^ set(files_of(expected))
    for name in files_of(expected):
        mine, theirs = found / name, expected / name
        if name.endswith((".safetensors", ".tsv")):
            assert mine.read_bytes() == theirs.read_bytes(), name
        elif name.endswith(("optimizer.pt", "scheduler.pt")):
            contents = [torch.load(path, weights_only=True) for path in (mine, theirs)]
            assert_close(contents[0], contents[1], rtol=0, atol=0)
        elif name.endswith("_results.json") or name.endswith("_all.json"):
            assert plain(json.loads(mine.read_text())) == plain(json.loads(theirs.read_text())), name


def plain(values):
    """Results without times, and without the loss of that part of the training that the last process did."""
    if not isinstance(values, dict):
        return values
    return {key: plain(value) for key, value in values.items() if not any(part in key for part in NOT_COMPARED)}


def trials(counts: dict[str, int], times: int, only: list[str]) -> list[tuple[str, int, float]]:
    """Which write to die in: name, occurrence, share of the file."""
    chosen = []
    for name in FILES:
        if only and name not in only:
            continue
        assert counts.get(name), f"{name} is never written"
        chosen += [(name, 1 + number % counts[name], number / times) for number in range(times)]
    for event in MOVES:
        if not only or event in only:
            step = max(1, counts[event] // (4 * times))
            chosen += [(event, number, 0.0) for number in range(1, counts[event] + 1, step)]
    return chosen


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("model")
    parser.add_argument("data")
    parser.add_argument("work", type=Path)
    parser.add_argument("--times", type=int, default=10)
    parser.add_argument("--only", nargs="*", default=[])
    parser.add_argument("--workers", default="0")
    args = parser.parse_args()
    command = [*RUN.split(), "--model_name_or_path", args.model, "--data_dir", args.data]
    command += ["--dataloader_num_workers", args.workers]
    whole, broken = args.work / "whole", args.work / "broken"
    assert run([*command, "--output_dir", str(whole)], Killer(whole), args.work / "counts.json") == 0
    counts = json.loads((args.work / "counts.json").read_text())
    done: Counter[str] = Counter()
    for name, occurrence, share in trials(counts, args.times, args.only):
        shutil.rmtree(broken, ignore_errors=True)
        mine = [*command, "--output_dir", str(broken)]
        ended = run(mine, Killer(broken, name, occurrence, share))
        trial = f"{name}, write {occurrence}, {share:.0%}"
        assert os.WIFSIGNALED(ended), f"not killed: {trial}"
        assert os.WTERMSIG(ended) == signal.SIGKILL
        assert run([*mine, "--resume_from_checkpoint", "last"]) == 0, f"not resumed: {trial}"
        compare(broken, whole)
        done[name] += 1
    for name, number in done.items():
        print(f"{name}: {number} of {number} killed, resumed and equal ({counts[name]} writes in a run)")
    print(f"{sum(done.values())} trials")


if __name__ == "__main__":
    main()
