"""CONTRIBUTING.md: each walk-through is followed step by step in a copy of the packages, and its commands run."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import grimp
import pytest

from tests.sot_fairseq.tokenizer_files import tiny_gpt2
from tests.sot_hf.models import tiny_model, tokenizer
from tests.support import REPOSITORY

pytestmark = [pytest.mark.e2e, pytest.mark.slow]
TEXT = (REPOSITORY / "CONTRIBUTING.md").read_text(encoding="utf-8")
PACKAGES = ("sot_base", "sot_core", "sot_visual", "sot_text", "sot_probe", "sot_fairseq", "sot_hf", "vision")


def blocks(title):
    """The code blocks of a section, as pairs of language and text."""
    section = TEXT.split(f"\n## {title}\n")[1].split("\n## ")[0]
    return re.findall(r"^```(\w+)\n(.*?)^```", section, flags=re.MULTILINE | re.DOTALL)


def insert(path, anchor, text):
    """Put lines behind the line of a file that starts with the anchor."""
    lines = path.read_text().splitlines(keepends=True)
    (place,) = [number for number, line in enumerate(lines) if line.startswith(anchor)]
    path.write_text("".join([*lines[: place + 1], text, *lines[place + 1 :]]))


def patch(path, diff):
    """Add the lines of a diff behind those that it shows of the file."""
    lines = diff.splitlines(keepends=True)
    context = "".join(line[1:] for line in lines if line.startswith(" "))
    before, after = path.read_text().split(context)
    path.write_text(before + context + "".join(line[1:] for line in lines if line.startswith("+")) + after)


@pytest.fixture
def copy(tmp_path):
    """A copy of what the walk-throughs change or run, which a new process imports."""
    for folder in (*PACKAGES, "benchmarks", "docs", "glue_scripts", "tests"):
        shutil.copytree(REPOSITORY / folder, tmp_path / folder, ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(REPOSITORY / "pyproject.toml", tmp_path)
    return tmp_path


def run(copy, command, **variables):
    programs = Path(sys.executable).parent
    environment = {**os.environ, "PYTHONPATH": str(copy), "PATH": f"{programs}:{os.environ['PATH']}", **variables}
    environment |= {"PYTHON": sys.executable, "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}
    command = ["bash", "-c", command]
    done = subprocess.run(command, cwd=copy, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    return done.stdout


def test_a_pooling_in_20_lines(copy):
    (_, code), (_, entry), (_, name_entry), (_, formula), (_, command) = blocks("Add a pooling in 20 lines")
    assert len(code.splitlines()) <= 20
    pooling, build = copy / "sot_core" / "first_order_pooling.py", copy / "sot_core" / "build.py"
    pooling.write_text(f"{pooling.read_text()}\n\n{code}")
    name = re.search(r"class (\w+)", code)[1]
    insert(build, "from sot_core.first_order_pooling", f"from sot_core.first_order_pooling import {name}\n")
    patch(build, entry)
    patch(copy / "sot_core" / "names.py", name_entry)
    patch(copy / "tests" / "sot_core" / "test_reference.py", formula)
    passed = re.search(r"(\d+) passed", run(copy, command))
    assert int(passed[1]) > 20
    assert "mean_magnitude" in run(copy, "python vision/train.py --help")


def test_a_backbone(copy):
    (_, code), (_, commands) = blocks("Add a backbone")
    (copy / "vision" / "models" / "mixer.py").write_text(code)
    insert(copy / "vision" / "models" / "__init__.py", "from vision.models import", "from vision.models import mixer\n")
    summary, train = commands.splitlines()
    assert "head.word_fc" in run(copy, summary)
    run(copy, f"{train} --max-steps 3")
    assert list(copy.glob("out/train/*/last.pth.tar"))
    without_code = re.search(r"`(python vision/train.py --model [^`]*)`", TEXT)[1]
    assert "resnet18" in run(copy, f"{without_code} --dataset digits --img-size 32 --dry-run")


def write_scitail(folder):
    folder.mkdir(parents=True)
    for name, count in (("train", 24), ("dev", 8)):
        rows = [f"the cat sees {i}\ta dog\t{('entails', 'neutral')[i % 2]}\n" for i in range(count)]
        (folder / f"{name}.tsv").write_text("premise\thypothesis\tlabel\n" + "".join(rows))


def test_a_task(copy):
    (_, row), (_, values), (_, script), (_, commands) = blocks("Add a task")
    patch(copy / "sot_text" / "glue.py", row)
    with (copy / "sot_text" / "tables" / "hyperparameters.tsv").open("a") as table:
        table.write(values)
    (copy / "glue_scripts" / "scitail.sh").write_text(script)
    write_scitail(copy / "glue_data" / "SciTail")
    tiny_model("bert").backbone.save_pretrained(copy / "roberta-base")
    tokenizer().save_pretrained(copy / "roberta-base")
    fairseq, huggingface = commands.replace("\\\n", " ").splitlines()
    output = run(copy, fairseq, GPT2_BPE_DIR=str(tiny_gpt2(copy / "gpt2_bpe")))
    assert re.search(r"^\| scitail \| SciTail \| dev +\| accuracy \| mgcrp ", output, flags=re.MULTILINE)
    run(copy, f"{huggingface} --num_train_epochs 1 --max_seq_length 16 --use_cpu")
    assert (copy / "scitail-run" / "model.safetensors").exists()
    run(copy, "python -m sot_fairseq.download --list")


def test_commands_are_programs():
    """Each path named in the table exists."""
    table = TEXT[TEXT.index("| to change") :].split("\n\n")[0]
    named = [path for path in re.findall(r"`([\w/]+(?:\.py|\.tsv|/))`", table) if "/" in path]
    assert len(named) > 15
    roots = (REPOSITORY, *(REPOSITORY / package for package in ("sot_base", "sot_text", "vision/training")))
    assert [path for path in named if not any((root / path).exists() for root in roots)] == []


def longest_chains():
    """The length of the longest chain of imports from each module down; they have no circle."""
    graph = grimp.build_graph(*PACKAGES, exclude_type_checking_imports=True)
    lengths = {}

    def length(module, above=()):
        assert module not in above, f"a circle: {' -> '.join([*above, module])}"
        if module not in lengths:
            below = graph.find_modules_directly_imported_by(module)
            lengths[module] = 1 + max((length(name, (*above, module)) for name in below), default=0)
        return lengths[module]

    for module in graph.modules:
        length(module)
    return lengths


def test_the_longest_chain_of_imports():
    lengths = longest_chains()
    number, module = re.search(r"longest chain of imports has (\d+)\s+modules,\s+from\s+`([\w.]+)`", TEXT).groups()
    assert int(number) == lengths[module] == max(lengths.values())
