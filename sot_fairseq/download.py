"""Download encoders, RoBERTa's byte-pair encoding and GLUE ahead of time.

    python -m sot_fairseq.download --encoder roberta.base spanbert.base
    python -m sot_fairseq.download --bpe gpt2
    python -m sot_fairseq.download --glue RTE CoLA --output-dir glue_data
    python -m sot_fairseq.download --list

Encoders and the encoding go to ``$SOT_CACHE`` (by default ``~/.cache/sot``), where the training scripts look for them;
GLUE's tasks go to ``<output-dir>/<task>``. What is there and complete is left alone; ``--force`` downloads it again. An
interrupted download resumes where it stopped. The path of each folder is printed. :mod:`sot_base.download.file` lists
the environment variables: ``SOT_MIRROR``, ``SOT_OFFLINE`` and the proxies'.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Sequence
from pathlib import Path

from sot_base.errors import UsageError, run_main
from sot_fairseq.pretrained.encoder_table import (
    ENCODERS,
    GPT2_BPE_SHA256,
    cache_dir,
    find_encoder,
    find_gpt2_bpe,
    gpt2_bpe_dir,
    missing_files,
)
from sot_text.glue import GLUE_TASKS, get_task
from sot_text.glue_files import GLUE_FILES, download_glue
from sot_text.glue_files import missing_files as missing_glue_files

__all__ = ["list_names", "main"]


def list_names(output_dir: Path) -> Iterator[str]:
    """Return a line of four columns, tab-separated, for each name: name, state, folder, origin.

    The state is ``present``, ``partial`` (files are missing) or ``absent``.
    """
    for name, known in ENCODERS.items():
        if name == "minilm":
            yield _minilm_line(known.origin)
        else:
            folder = cache_dir() / name
            yield _line(name, missing_files(folder, known.files), len(known.files), folder, known.origin)
    folder, origin = gpt2_bpe_dir()
    yield _line("gpt2", missing_files(folder, tuple(GPT2_BPE_SHA256)), len(GPT2_BPE_SHA256), folder, origin)
    for name, task in GLUE_TASKS.items():
        urls = " ".join(remote.url for remote in GLUE_FILES.get(name, ()))
        folder = output_dir / name
        yield _line(name, missing_glue_files(task, folder), len(task.splits), folder, urls)


def _minilm_line(origin: str) -> str:
    try:
        return "\t".join(("minilm", "present", str(find_encoder("minilm")), origin))
    except UsageError:
        return "\t".join(("minilm", "absent", "-", origin))


def _line(name: str, missing: list[str], total: int, folder: Path, origin: str) -> str:
    state = "present" if not missing else "partial" if len(missing) < total else "absent"
    return "\t".join((name, state, str(folder), origin))


def main(argv: Sequence[str] | None = None) -> None:
    """Run the command line."""
    parser = argparse.ArgumentParser(
        prog="python -m sot_fairseq.download",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--encoder", nargs="+", default=[], metavar="NAME", help=f"of {', '.join(ENCODERS)}")
    parser.add_argument("--bpe", choices=("gpt2",), help="RoBERTa's byte-pair encoding")
    parser.add_argument("--glue", nargs="+", default=[], metavar="TASK", help=f"all, or of {', '.join(GLUE_TASKS)}")
    parser.add_argument("--output-dir", type=Path, default=Path("glue_data"), help="for GLUE (default: glue_data)")
    parser.add_argument("--force", action="store_true", help="download again what is there")
    parser.add_argument("--list", action="store_true", help="print the names, whether they are here, and where")
    args = parser.parse_args(argv)
    if not (args.encoder or args.bpe or args.glue or args.list):
        parser.error("nothing to download; give --encoder, --bpe, --glue or --list")
    unknown = [name for name in args.encoder if name not in ENCODERS]
    if unknown:
        raise UsageError(f"no such encoder: {', '.join(unknown)}; the names are {', '.join(ENCODERS)}")
    tasks = list(GLUE_TASKS) if args.glue == ["all"] else [get_task(name).name for name in args.glue]
    for name in args.encoder:
        print(find_encoder(name, args.force).absolute())  # noqa: T201
    if args.bpe:
        print(find_gpt2_bpe(args.force).absolute())  # noqa: T201
    for name in tasks:
        print(download_glue(name, args.output_dir, args.force))  # noqa: T201
    if args.list:
        print("\n".join(list_names(args.output_dir.absolute())))  # noqa: T201


if __name__ == "__main__":
    run_main(main)
