r"""Preprocessing speed beside fairseq's own two commands, on the same files, with equal output.

    python -m benchmarks.preprocess --data-dir glue_data --gpt2-bpe-dir gpt2_bpe --tasks RTE CoLA

The train files of the tasks are repeated to at least 100,000 sentences. Without GPT-2's files a byte-level BPE of 2,000
words is made from the demo corpus. fairseq's recipe is
``multiprocessing_bpe_encoder --workers 2`` and ``fairseq-preprocess --workers 2`` for each input; ``python -m
sot_fairseq.preprocess`` does both, labels included, in one process whose Rust threads are limited to 2.

Each side runs the main functions of its commands in a fresh process: on one row, which is the start-up (imports, files
of the tokenizer, processes), on one row again, and on the whole file. Sentences per second count the time that the
whole file takes beyond one row, the best of the repeats; neither side keeps words from one run to the next. The ratio
of processor time (user and system, of all processes) is there for machines that are busy with other things. The
``.bin``, ``.idx`` and ``dict.txt`` of the inputs are compared byte for byte.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import resource
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from benchmarks import DEMO_CORPUS
from sot_base.errors import UsageError, run_main
from sot_text.glue import GlueTask, get_task
from sot_text.tsv import read_tsv

if TYPE_CHECKING:
    from benchmarks.report import Row

WORKERS = 2


class Seconds(NamedTuple):
    """What one run took."""

    wall: float
    cpu: float


class Timing(NamedTuple):
    """What one side took: its first run on one row, a later one on one row, and the whole file."""

    start: Seconds
    one: Seconds
    whole: Seconds


@dataclass(frozen=True)
class Job:
    """The same data as each side wants it: in `folder` for one row (``one``) and the whole file (``all``)."""

    task: GlueTask
    folder: Path
    bpe: Path
    repeats: int

    def texts(self, size: str) -> list[Path]:
        """Text files with one sentence a line, one for each input."""
        return [self.folder / size / f"{column}.txt" for column in self.task.splits[0].text_columns]


def measure(task: GlueTask, data_dir: Path, bpe: Path, folder: Path, sentences: int, repeats: int) -> Row:
    """Time both sides, compare what they wrote, and give a row of the table.

    Raises:
        UsageError: If the files differ.
    """
    split = task.splits[0]
    table = read_tsv(data_dir / task.name / split.file, [*split.text_columns, split.label_column], split.header)
    repetitions = -(-sentences // (len(table) * task.num_inputs))
    job = Job(task, folder, bpe, repeats)
    _write_data(job, data_dir, "one", 1)
    _write_data(job, data_dir, "all", len(table) * repetitions)
    stock, ours = _in_fresh_process(_stock, job), _in_fresh_process(_ours, job)
    for number in range(task.num_inputs):
        for name in ("train.bin", "train.idx", "dict.txt"):
            paths = [folder / "all" / side / f"input{number}" / name for side in ("stock", "ours")]
            if paths[0].read_bytes() != paths[1].read_bytes():
                raise UsageError(f"the output differs: {paths[0]} and {paths[1]}; report this as a bug")
    count = len(table) * repetitions * task.num_inputs
    speeds = [count / (side.whole.wall - side.one.wall) for side in (stock, ours)]
    cpu = [side.whole.cpu - side.one.cpu for side in (stock, ours)]
    return {
        "corpus": task.name,
        "sentences": count,
        "fairseq, sentences/s": speeds[0],
        "sot_fairseq, sentences/s": speeds[1],
        "ratio": speeds[0] / speeds[1],
        "CPU time ratio": cpu[1] / cpu[0],
        "fairseq start-up, s": stock.start.wall,
        "sot_fairseq start-up, s": ours.start.wall,
        "same bytes": "yes",
    }


def _write_data(job: Job, data_dir: Path, size: str, rows: int) -> None:
    """Write TSV files with so many train rows, and each text column as a file of its own, as fairseq wants it."""
    split, folder = job.task.splits[0], job.folder / size
    lines = (data_dir / job.task.name / split.file).read_bytes().decode("utf-8").removesuffix("\n").split("\n")
    first = [] if split.header else [lines.pop(0)]
    header = list(split.header or first[0].split("\t"))
    repeated = (lines * -(-rows // len(lines)))[:rows]
    (folder / job.task.name).mkdir(parents=True)
    for file, content in ((split.file, repeated), (job.task.splits[1].file, lines[:1])):
        text = "".join(line + "\n" for line in first + content)
        (folder / job.task.name / file).write_text(text, encoding="utf-8", newline="")
    for column, path in zip(split.text_columns, job.texts(size), strict=True):
        place = header.index(column)
        path.write_text("".join(line.split("\t")[place] + "\n" for line in repeated), encoding="utf-8", newline="")


def _in_fresh_process(side: Callable[[Job, str], None], job: Job) -> Timing:
    with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn")) as pool:
        return pool.submit(_timed_runs, side, job, time.monotonic()).result()


def _timed_runs(side: Callable[[Job, str], None], job: Job, started: float) -> Timing:
    os.environ["RAYON_NUM_THREADS"] = str(WORKERS)
    multiprocessing.set_start_method("fork", force=True)  # as when fairseq's commands are started from a shell
    with open(os.devnull, "w") as nowhere, contextlib.redirect_stdout(nowhere), contextlib.redirect_stderr(nowhere):
        side(job, "one")
        start = Seconds(time.monotonic() - started, _cpu())
        one = min(_timed(side, job, "one") for _ in range(job.repeats))
        return Timing(start, one, min(_timed(side, job, "all") for _ in range(job.repeats)))


def _timed(side: Callable[[Job, str], None], job: Job, size: str) -> Seconds:
    cpu, start = _cpu(), time.monotonic()
    side(job, size)
    return Seconds(time.monotonic() - start, _cpu() - cpu)


def _cpu() -> float:
    usages = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(usage.ru_utime + usage.ru_stime for usage in usages)


def _stock(job: Job, size: str) -> None:
    from fairseq.examples.roberta import multiprocessing_bpe_encoder
    from fairseq_cli import preprocess

    for number, text in enumerate(job.texts(size)):
        encoded, output = text.with_suffix(".bpe"), job.folder / size / "stock" / f"input{number}"
        files = ["--encoder-json", job.bpe / "encoder.json", "--vocab-bpe", job.bpe / "vocab.bpe"]
        files += ["--inputs", text, "--outputs", encoded]
        sys.argv = list(map(str, ["encoder", *files, "--workers", WORKERS, "--keep-empty"]))
        multiprocessing_bpe_encoder.main()
        files = ["--trainpref", encoded, "--destdir", output, "--srcdict", job.bpe / "dict.txt"]
        sys.argv = list(map(str, ["fairseq-preprocess", "--only-source", *files, "--workers", WORKERS]))
        preprocess.cli_main()


def _ours(job: Job, size: str) -> None:
    from sot_fairseq.preprocess import main

    files = ["--data-dir", job.folder / size, "--output-dir", job.folder / size / "ours", "--gpt2-bpe-dir", job.bpe]
    main(list(map(str, ["--task", job.task.name, *files, "--bpe", "gpt2"])))


def main(argv: Sequence[str] | None = None) -> None:
    """Print the table."""
    from benchmarks.report import Report, benchmark_parser  # not at import: the measured processes import this module

    parser = benchmark_parser(__doc__, repetitions=2, quick="200 sentences, one repetition")
    parser.add_argument("--data-dir", type=Path, default=DEMO_CORPUS, help="GLUE's folder; default: the demo corpus")
    parser.add_argument("--tasks", nargs="+", default=["CoLA"])
    parser.add_argument(
        "--gpt2-bpe-dir", type=Path, help="has encoder.json, vocab.bpe and dict.txt; default: see above"
    )
    parser.add_argument("--sentences", type=int, default=100_000, help="repeat the files to at least so many")
    args = parser.parse_args(argv)
    if args.quick:
        args.sentences, args.repetitions = 200, 1
    report = Report(args, f"{WORKERS} workers, fastest of {args.repetitions}; ratios are of times, to fairseq's")
    rows = []
    with tempfile.TemporaryDirectory() as own:
        bpe = (args.gpt2_bpe_dir or make_bpe(Path(own))).resolve()
        for name in args.tasks:
            with tempfile.TemporaryDirectory() as folder:
                data = args.data_dir.resolve()
                rows.append(measure(get_task(name), data, bpe, Path(folder), args.sentences, args.repetitions))
    report.table("Preprocessing", rows)
    report.save()


def make_bpe(folder: Path) -> Path:
    """Train a small byte-level BPE on the demo corpus and write it as GPT-2's files."""
    from tokenizers import ByteLevelBPETokenizer

    tokenizer = ByteLevelBPETokenizer()
    tokenizer.train(str(DEMO_CORPUS / "CoLA" / "train.tsv"), vocab_size=2000, show_progress=False)
    vocab, merges = map(Path, tokenizer.save_model(str(folder)))
    vocab.rename(folder / "encoder.json")
    merges.rename(folder / "vocab.bpe")
    (folder / "dict.txt").write_text("".join(f"{number} 1\n" for number in range(tokenizer.get_vocab_size())))
    return folder


if __name__ == "__main__":
    run_main(main)
