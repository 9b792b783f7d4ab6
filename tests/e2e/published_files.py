"""Small files in the place of the published ones, for scripts that download, and processes that expect them."""

import io
import tarfile
import zipfile
from pathlib import Path

from fairseq import options
from fairseq.dataclass.utils import convert_namespace_to_omegaconf
from fairseq_cli import train as fairseq_train

from sot_fairseq import preprocess
from sot_text.glue import GLUE_TASKS
from tests.glue_files import write_glue
from tests.sot_fairseq.tokenizer_files import tiny_gpt2
from tests.support import REPOSITORY

WORDS = ["the", "sailors", "were", "sure", "of", "rocks"]
SIZES = "--encoder-layers 1 --encoder-embed-dim 16 --encoder-ffn-embed-dim 16 --encoder-attention-heads 2"

# Checksums and sizes are those of the published files: every Python process of the scripts is told to expect none.
SITE = """
from dataclasses import replace
from sot_text import glue_files
for name, remotes in glue_files.GLUE_FILES.items():
    glue_files.GLUE_FILES[name] = tuple(replace(remote, sha256=None, size=None) for remote in remotes)
import sys
if any(word.startswith("sot_fairseq") for word in sys.orig_argv):
    from sot_fairseq.pretrained import encoder_table
    encoder_table.GPT2_BPE = tuple(
        source._replace(remote=replace(source.remote, sha256=None)) for source in encoder_table.GPT2_BPE
    )
"""


def make_published_files(folder: Path, tasks=("RTE", "CoLA")) -> dict[str, bytes]:
    """Make GLUE's archives, GPT-2's BPE and a tiny ``roberta.base``; gives the bytes by path on the server."""
    bpe, glue = tiny_gpt2(folder / "gpt2_bpe"), write_glue(folder / "glue", WORDS, tasks)
    files = {f"/fairseq/gpt2_bpe/{path.name}": path.read_bytes() for path in bpe.iterdir()}
    for task in tasks:
        (test,) = (split for split in GLUE_TASKS[task].splits if split.name == "test")
        header = ("index", *test.text_columns)
        (glue / task / test.file).write_text("\t".join(header) + "\n" + "\t".join(["0", *["rocks"] * len(header[1:])]))
        files[f"/glue/data/{task}.zip"] = _zipped(glue / task)
    files["/fairseq/models/roberta.base.tar.gz"] = _tarred(_roberta(folder, bpe, glue))
    return files


def _roberta(folder: Path, bpe: Path, glue: Path) -> Path:
    """Train a RoBERTa for one update, in this process."""
    data = ["--task", "RTE", "--data-dir", str(glue), "--output-dir", str(folder / "bin")]
    preprocess.main([*data, "--bpe", "gpt2", "--gpt2-bpe-dir", str(bpe)])
    words = f"{folder / 'bin'} --user-dir {REPOSITORY / 'sot_fairseq'} --task sentence_prediction_mgcrp --num-classes 2"
    words += f" --arch roberta_base {SIZES} --max-positions 64 --criterion sentence_prediction_mgcrp --optimizer adam"
    words += f" --lr 1e-3 --batch-size 8 --max-update 1 --cpu --num-workers 0 --save-dir {folder / 'run'}"
    words += " --best-checkpoint-metric accuracy --maximize-best-checkpoint-metric --no-epoch-checkpoints"
    args = options.parse_args_and_arch(options.get_training_parser(), words.split())
    fairseq_train.main(convert_namespace_to_omegaconf(args))
    (folder / "roberta").mkdir()
    (folder / "run" / "checkpoint_last.pt").rename(folder / "roberta" / "model.pt")
    (folder / "roberta" / "dict.txt").write_bytes((bpe / "dict.txt").read_bytes())
    return folder / "roberta"


def write_site(folder: Path) -> Path:
    """Write what makes Python processes accept the small files; the folder goes in front of ``PYTHONPATH``."""
    folder.mkdir()
    (folder / "sitecustomize.py").write_text(SITE)
    return folder


def _zipped(folder: Path) -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        for path in sorted(folder.iterdir()):
            archive.write(path, f"{folder.name}/{path.name}")
    return buffer.getvalue()


def _tarred(folder: Path) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w:gz") as archive:
        for path in sorted(folder.iterdir()):
            archive.add(path, f"roberta.base/{path.name}")
    return buffer.getvalue()
