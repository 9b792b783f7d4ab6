"""Run fairseq's own two steps of preprocessing on text files, many in one process: ``python stock_preprocess.py JSON``.

The JSON is a list of [raw text file, output folder, split name, encoder folder].
"""

import json
import shutil
import sys
from pathlib import Path

from fairseq.examples.roberta import multiprocessing_bpe_encoder
from fairseq_cli import preprocess


def run(text: str, output: str, split: str, bpe: str) -> None:
    encoded, made = f"{output}/{split}.bpe", Path(output) / "made"
    sys.argv = ["encoder", "--encoder-json", f"{bpe}/encoder.json", "--vocab-bpe", f"{bpe}/vocab.bpe"]
    sys.argv += ["--inputs", text, "--outputs", encoded, "--workers", "2", "--keep-empty"]
    multiprocessing_bpe_encoder.main()
    sys.argv = ["fairseq-preprocess", "--only-source", "--trainpref", encoded, "--destdir", str(made)]
    sys.argv += ["--workers", "2", "--srcdict", f"{bpe}/dict.txt"]
    preprocess.cli_main()
    for suffix in ("bin", "idx"):
        (made / f"train.{suffix}").rename(f"{output}/{split}.{suffix}")
    (made / "dict.txt").rename(f"{output}/dict.txt")
    shutil.rmtree(made)


if __name__ == "__main__":
    for job in json.loads(sys.argv[1]):
        run(*job)
