"""Damage the files of every reader and tell what is no plain refusal.

    python -m tests.fuzz                                  # every reader, 1,500 inputs each: about an hour
    python -m tests.fuzz --inputs 40 --reader TSV zip     # some

Prints a row for each reader. Inputs that show a finding are kept in ``--keep``. The exit status is 1 if there is one.
"""

from __future__ import annotations

import argparse
import logging
import subprocess
import sys
import tempfile
import time
from pathlib import Path

HEADER = "| reader | inputs | read | refused | findings | seconds |\n|---|---|---|---|---|---|"


def main() -> int:
    """Run the readers, each in a process of its own unless told otherwise."""
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz", description=__doc__.split("\n")[0])
    parser.add_argument("--inputs", type=int, default=1500, help="damaged inputs for each reader (default: 1500)")
    parser.add_argument("--seconds", type=float, default=3600, help="start no reader after this time (default: 3600)")
    parser.add_argument("--seed", type=int, default=0, help="of the damages (default: 0)")
    parser.add_argument("--reader", nargs="+", metavar="NAME", help="only these")
    parser.add_argument(
        "--keep", type=Path, default=Path("out/fuzz"), help="for inputs with findings (default: out/fuzz)"
    )
    parser.add_argument("--together", action="store_true", help="all readers in one process: quicker for few inputs")
    parser.add_argument("--list", action="store_true", help="print the readers' names")
    args = parser.parse_args()
    sys.stdout.reconfigure(errors="backslashreplace")
    from tests.fuzz.readers import READERS

    names = [reader.name for reader in READERS if args.reader is None or reader.name in args.reader]
    if unknown := set(args.reader or ()) - set(names):
        parser.error(f"no such reader: {', '.join(sorted(unknown))}; see --list")
    if args.list:
        print("\n".join(names))
        return 0
    if args.together or len(names) == 1:
        return _run_here(names, args)
    print(HEADER, flush=True)
    start, failed = time.monotonic(), []
    for name in names:
        if time.monotonic() - start > args.seconds:
            print(f"| {name} | not started: out of time | | | | |")
            failed.append(name)
            continue
        words = ["--inputs", args.inputs, "--seed", args.seed, "--keep", args.keep, "--reader", name]
        run = subprocess.run([sys.executable, "-m", "tests.fuzz", *map(str, words)], capture_output=True, text=True)
        lines = run.stdout.splitlines()
        print("\n".join(lines[2:]) or f"| {name} | died with status {run.returncode} | | | 1 | |", flush=True)
        if run.returncode not in (0, 1):
            print(run.stderr[-2000:])
        failed += [name] if run.returncode else []
    return 1 if failed else 0


def _run_here(names: list[str], args: argparse.Namespace) -> int:
    from tests.fuzz.engine import run
    from tests.fuzz.readers import READERS

    logging.disable(logging.CRITICAL)
    findings = 0
    print(HEADER, flush=True)
    for reader in READERS:
        if reader.name in names:
            with tempfile.TemporaryDirectory() as folder:
                report = run(reader, Path(folder), args.inputs, args.seed, args.keep)
            print(report.line(), flush=True)
            print("".join(f"  {finding}\n" for finding in report.findings[:20]), end="", flush=True)
            findings += len(report.findings)
    return 1 if findings else 0


if __name__ == "__main__":
    sys.exit(main())
