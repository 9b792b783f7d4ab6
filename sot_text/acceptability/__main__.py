"""Write the corpus: ``python -m sot_text.acceptability OUT_DIR``."""

from __future__ import annotations

import argparse
from pathlib import Path

from sot_base.atomic import atomic_file
from sot_base.errors import UsageError, run_main
from sot_text.acceptability.corpus import make_corpus


def main() -> None:
    """Write ``train.tsv`` and ``dev.tsv`` into a folder."""
    parser = argparse.ArgumentParser(prog="python -m sot_text.acceptability", description=__doc__)
    parser.add_argument("out_dir", type=Path, metavar="OUT_DIR", help="folder for train.tsv and dev.tsv")
    parser.add_argument("--seed", type=int, default=1, help="seed of the sentences (default: %(default)s)")
    parser.add_argument("--train-rows", type=int, default=2000, help="sentences to learn from (default: %(default)s)")
    parser.add_argument("--dev-rows", type=int, default=500, help="sentences to test on (default: %(default)s)")
    args = parser.parse_args()
    if args.out_dir.exists() and not args.out_dir.is_dir():
        raise UsageError(f"not a folder: {args.out_dir}; name a folder, it is made if need be")
    corpus = make_corpus(args.seed, args.train_rows, args.dev_rows)
    with atomic_file(args.out_dir / "train.tsv") as train, atomic_file(args.out_dir / "dev.tsv") as dev:
        for path, rows in ((train, corpus.train), (dev, corpus.dev)):
            path.write_text("".join(row.to_tsv() for row in rows), encoding="utf-8", newline="\n")
    for split, rows in corpus._asdict().items():
        share = sum(row.acceptable for row in rows) / len(rows)
        print(f"{args.out_dir / split}.tsv: {len(rows)} sentences, {share:.1%} acceptable")  # noqa: T201


if __name__ == "__main__":
    run_main(main)
