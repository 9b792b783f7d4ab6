"""README.md: every command and example in it runs, on files in GLUE's layout; its links lead somewhere.

The words added to the commands make them short (one epoch, one seed, a small encoder); the rest is as it is written.
"""

import os
import random
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from sot_fairseq.pretrained.encoder_table import find_encoder
from tests.sot_fairseq.tokenizer_files import tiny_gpt2
from tests.support import REPOSITORY

pytestmark = [pytest.mark.e2e, pytest.mark.slow]
TEXT = (REPOSITORY / "README.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"^```(bash|python)\n(.*?)^```", TEXT, flags=re.MULTILINE | re.DOTALL)
WORDS = ["the", "sailors", "were", "sure", "of", "rocks"]
TINY = "--encoder-layers 1 --encoder-embed-dim 16 --encoder-ffn-embed-dim 16 --encoder-attention-heads 2"


def block(words):
    """The one block with these words in it."""
    (found,) = (text for _, text in BLOCKS if words in text)
    return found


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Where the reader stands: the scripts, GLUE's files and a byte-level BPE."""
    folder = tmp_path_factory.mktemp("reader")
    for name in ("glue_scripts", "sot_fairseq"):
        (folder / name).symlink_to(REPOSITORY / name)
    tiny_gpt2(folder / "gpt2_bpe")
    rng = random.Random(1)
    tables = {"RTE": ("index\tsentence1\tsentence2\tlabel", 2), "SST-2": ("sentence\tlabel", 1)}
    for task, (header, texts) in tables.items():
        (folder / "glue_data" / task).mkdir(parents=True)
        for split, count in (("train", 12), ("dev", 6)):
            lines = [header]
            for row in range(count):
                sentences = [" ".join(rng.choices(WORDS, k=5)) for _ in range(texts)]
                label = ("entailment", "not_entailment")[row % 2] if texts == 2 else str(row % 2)
                lines.append("\t".join([*([str(row)] if texts == 2 else []), *sentences, label]))
            (folder / "glue_data" / task / f"{split}.tsv").write_text("\n".join(lines) + "\n")
    return folder


def run(folder, script):
    environment = os.environ | {
        "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
        "OMP_NUM_THREADS": "1",
        "SEEDS": "1",
        "MAX_EPOCH": "1",
        "HF_HUB_OFFLINE": "1",
    }
    process = subprocess.run(
        ["bash", "-euo", "pipefail", "-c", script],
        capture_output=True,
        text=True,
        cwd=folder,
        env=environment,
        timeout=900,
    )
    assert process.returncode == 0, process.stdout[-3000:] + process.stderr[-3000:]
    return process.stdout


@pytest.mark.parametrize("words, result", [("rte.sh", "out/rte"), ("sst2.sh", "out/sst-2")])
def test_the_scripts(folder, words, result):
    out = run(folder, block(words).replace(". .venv/bin/activate\n", ""))
    assert (folder / result / "results.json").exists()
    for head in ("mgcrp", "cls"):
        assert f"| {head} |" in re.sub(" +", " ", out)


def test_the_steps_one_by_one(folder):
    preprocess, train = block("sot_fairseq.preprocess").split("fairseq-train", 1)
    run(folder, preprocess)
    train = f"fairseq-train {train.strip()} {TINY} --cpu".replace("\\\n", " ")
    pretrained = re.sub(r"--finetune-from-model \S+|--save-dir \S+|--max-epoch \S+", "", train)
    run(
        folder,
        f"{pretrained} --max-epoch 1 --save-dir roberta.base && cd roberta.base && mv checkpoint_last.pt model.pt",
    )
    output = run(folder, train)
    assert "backbone tensors" in output
    assert (folder / "rte-run" / "checkpoint_best.pt").exists()
    example = block("sot_fairseq.from_pretrained")
    lines = run(folder, f"python -c {shlex.quote(example)}").splitlines()
    assert len(lines) == 1
    assert lines[0].split()[0] in ("entailment", "not_entailment")

    train = train.replace("--user-dir sot_fairseq", '--user-dir "$(python -m sot_fairseq.path)"')
    run(folder, f"{train} --head-fusion cls --save-dir cls-run --max-epoch 1")
    assert (folder / "cls-run" / "checkpoint_best.pt").exists()


def test_the_head_alone(folder):
    names = {}
    exec(block("ClassificationHead"), names)
    assert names["logits"].shape == (2, 3)
    assert names["cls_part"].add(names["word_part"]).sub(names["logits"]).abs().max() < 1e-5


def test_the_head_on_a_hugging_face_model():
    names = {}
    exec(block("SoTForSequenceClassification").replace('"bert-base-cased"', repr(str(find_encoder("minilm")))), names)
    assert names["logits"].shape == (2, 2)


def test_the_text_classifier(capsys):
    exec(block("TextClassifier"), {})
    assert capsys.readouterr().out == "['good' 'bad']\n"


def test_make_has_the_targets():
    for target in re.findall(r"^make (\w+)", "\n".join(text for _, text in BLOCKS), flags=re.MULTILINE):
        assert re.search(rf"^{target}:", (REPOSITORY / "Makefile").read_text(), flags=re.MULTILINE), target


@pytest.mark.parametrize(
    "document", ["README.md", "CONTRIBUTING.md", *(f"docs/{p.name}" for p in (REPOSITORY / "docs").glob("*.md"))]
)
def test_links_lead_to_files(document):
    path = REPOSITORY / document
    for link in re.findall(r"\]\((?!http|#)([^)#]+)", path.read_text(encoding="utf-8")):
        assert (path.parent / link).exists(), link
