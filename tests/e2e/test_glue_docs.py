"""docs/glue.md: its commands run on tiny files, in this process; docs/troubleshooting.md quotes what the code says."""

import importlib
import io
import os
import random
import re
import shlex
import sys

import pytest
import yaml
from fairseq import options
from fairseq.dataclass.utils import convert_namespace_to_omegaconf
from fairseq_cli import train as fairseq_train

from sot_fairseq import download, preprocess, sweep
from sot_fairseq.pretrained.encoder_table import ENCODERS
from tests.glue_files import write_glue
from tests.sot_fairseq.tokenizer_files import tiny_gpt2
from tests.support import REPOSITORY

pytestmark = [pytest.mark.e2e, pytest.mark.slow]
TEXT = (REPOSITORY / "docs" / "glue.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"^```bash\n(.*?)^```", TEXT, flags=re.MULTILINE | re.DOTALL)
COMMANDS = [line for text in BLOCKS for line in text.replace("\\\n", " ").splitlines()]
WORDS = ["the", "sailors", "were", "sure", "of", "rocks"]
TINY = "--encoder-layers 1 --encoder-embed-dim 16 --encoder-ffn-embed-dim 16 --encoder-attention-heads 2 --cpu"
VARIABLE = re.compile(r"([A-Z_]+)=(.*)")


def commands(*parts):
    """The document's commands with all these words in them, split."""
    return [shlex.split(command, comments=True) for command in COMMANDS if all(part in command for part in parts)]


def train(words):
    fairseq_train.main(convert_namespace_to_omegaconf(parse(words)))


def parse(words):
    user_dir = {"sot_fairseq": str(REPOSITORY / "sot_fairseq")}
    words = [user_dir.get(word, word) for word in words[1:]] + TINY.split()
    return options.parse_args_and_arch(options.get_training_parser(), words)


def run(words):
    assert words[:2] == ["python", "-m"]
    importlib.import_module(words[2]).main(words[3:])


@pytest.fixture(scope="module")
def reader(tmp_path_factory):
    """Where the reader stands, with preprocessed data and a pretrained encoder."""
    folder = tmp_path_factory.mktemp("reader")
    write_glue(folder / "glue_data", WORDS, ("CoLA", "SST-2"))
    (folder / "glue_data" / "CoLA" / "test.tsv").write_text("index\tsentence\n0\tthe sailors\n1\trocks\n")
    tiny_gpt2(folder / "gpt2_bpe")
    rng = random.Random(1)
    (folder / "my_data").mkdir()
    for name in ("train", "dev"):
        labels = (("sea", "wet,cold"), ("land", ""), ("sea", "wet"))
        rows = [f"{rng.choice(WORDS)}\tof {rng.choice(WORDS)}\t{topic}\t{tags}\n" for topic, tags in labels * 4]
        (folder / "my_data" / f"{name}.tsv").write_text("title\tbody\ttopic\ttags\n" + "".join(rows))
    start = os.getcwd()
    os.chdir(folder)
    for words in commands("sot_fairseq.preprocess"):
        run(words)
    (words,) = commands("fairseq-train", "--head-lr-scale")
    restore = words.index("--finetune-from-model")
    train([*words[:restore], *words[restore + 2 :], "--max-update", "1", "--save-dir", "roberta.base"])
    (folder / "roberta.base" / "checkpoint_last.pt").rename(folder / "roberta.base" / "model.pt")
    os.chdir(start)
    return folder


@pytest.mark.parametrize("save_dir", ["cola-run", "topics-run", "tags-run"])
def test_train_evaluate_and_predict(reader, monkeypatch, capsys, save_dir):
    monkeypatch.chdir(reader)
    words = next(words for words in commands("fairseq-train", f"--save-dir {save_dir}"))
    train([*words, "--max-epoch", "1"])
    (reader / save_dir / "checkpoint_last.pt").unlink()  # each of the documented ways has the best one
    for words in commands("sot_fairseq.evaluate", save_dir):
        run(words)
        assert re.fullmatch(r"dev: mcc [-\d.]+, accuracy [\d.]+", capsys.readouterr().out.splitlines()[-1])
    (piped,) = commands("| python -m sot_fairseq.predict", save_dir) or [None]
    if piped:
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(piped[1].encode() + b"\n")))
        run(piped[3:])
        assert capsys.readouterr().out.splitlines()[-1].startswith(("0\t0.", "1\t0."))
    for words in commands("python -m sot_fairseq.predict", save_dir):
        if words[0] == "python":
            run(words)
    written = {
        "cola-run": {"cola.jsonl": 10, "submission/CoLA.tsv": 3},
        "topics-run": {"topics.tsv": 13},
        "tags-run": {},
    }
    for name, lines in written[save_dir].items():
        assert len((reader / name).read_text().splitlines()) == lines


def test_the_probe(reader, monkeypatch, capsys):
    monkeypatch.chdir(reader)
    monkeypatch.setenv("GPT2_BPE_DIR", str(reader / "gpt2_bpe"))
    (words,) = commands("sot_fairseq.probe")
    swapped = ["scratch:1x16" if word == "minilm" else word for word in words]
    run([*swapped, "--epochs", "1", "--cache-dir", "cache"])
    assert {"cls", "gap-words", "mgcrp"} <= set(capsys.readouterr().out.replace("|", " ").split())


def test_the_sweep_is_a_command(monkeypatch, tmp_path):
    (words,) = commands("sot_fairseq.sweep")
    monkeypatch.chdir(tmp_path)
    command = tmp_path / words[words.index("--command") + 1]
    command.parent.mkdir(parents=True)
    command.write_text(shlex.join(commands("fairseq-train", "--head-lr-scale")[0]))
    tried = []
    monkeypatch.setattr(sweep.Sweep, "_train", lambda self, words, seed, _: tried.append(words) or (seed, "", True))
    run(words)
    assert len(tried) == 20 * 3
    assert {words[0] for words in tried} == {"--lr"}
    assert {words[3] for words in tried} == {"1", "5", "10"}
    assert len((tmp_path / "sweep-cola" / "runs.csv").read_text().splitlines()) == 61


def test_downloads_are_commands(monkeypatch, tmp_path, capsys):
    got = []
    monkeypatch.setattr(download, "find_encoder", lambda name, *_: got.append(name) or tmp_path)
    monkeypatch.setattr(download, "find_gpt2_bpe", lambda *_: got.append("gpt2") or tmp_path)
    monkeypatch.setattr(download, "download_glue", lambda name, *_: got.append(name) or tmp_path)
    for words in commands("sot_fairseq.download"):
        run(words)
    assert set(got) - {"minilm"} == {"CoLA", "RTE", "gpt2", "roberta.base"}  # the list looks minilm up
    listed = capsys.readouterr().out
    for name in ENCODERS:
        assert name in listed
        assert f"`{name}`" in TEXT


def test_scripts_variables_and_words_exist():
    known = "".join((REPOSITORY / "glue_scripts" / name).read_text() for name in ("common.sh", "all.sh"))
    found = commands("glue_scripts/")
    assert len(found) == 7
    for words in found:
        variables = [match[1] for match in map(VARIABLE.fullmatch, words) if match]
        script = words[len(variables) + 1]
        assert words[len(variables)] == "bash"
        assert (REPOSITORY / script).is_file()
        assert all(re.search(rf"^# +{name}\b", known, flags=re.MULTILINE) for name in variables), variables
        parse(["fairseq-train", "x", *commands("fairseq-train")[0][2:], *words[len(variables) + 2 :]])
    for name in re.findall(r"`(\w+\.sh)`", TEXT):
        assert (REPOSITORY / "glue_scripts" / name).is_file()


def test_hydra_and_processes_are_commands():
    (words,) = commands("fairseq-hydra-train")
    configs = [yaml.safe_load((REPOSITORY / words[2] / f"{name}.yaml").read_text()) for name in (words[4], "shared")]
    for override in words[5:]:
        group, key = override.split("=")[0].split(".")
        assert any(key in config.get(group, {}) for config in configs), override
    (words,) = commands("--distributed-rank")
    tests = (REPOSITORY / "tests" / "sot_fairseq" / "fairseq_patches" / "test_processes.py").read_text()
    args = parse(words)
    assert (args.distributed_world_size, args.distributed_rank) == (2, 0)
    assert all(f'"{word}"' in tests for word in words if word.startswith(("--distributed", "--ddp")))


def test_own_data_is_preprocessed_as_documented(reader):
    assert preprocess.main.__module__ == "sot_fairseq.preprocess"
    assert (reader / "topics-bin" / "label" / "dict.txt").read_text().split()[::2] == ["land", "sea"]


def test_quoted_messages_are_in_the_code():
    sources = "".join(
        path.read_text(encoding="utf-8")
        for package in ("sot_base", "sot_core", "sot_text", "sot_probe", "sot_fairseq", "vision", "glue_scripts")
        for path in sorted((REPOSITORY / package).rglob("*.py"))
    )
    document = (REPOSITORY / "docs" / "troubleshooting.md").read_text(encoding="utf-8")
    own = [line.split("|")[1] for line in document.splitlines() if line.startswith("| `")]
    foreign = (
        "mutable default",
        "is validated against",
        "--user-dir",
        "Expected to have finished",
        "too large",
        "No space",
    )
    quotes = [quote for cell in own for quote in re.findall(r"`([^`]+)`", cell)]
    quotes = [quote for quote in quotes if " " in quote and not any(words in quote for words in foreign)]
    assert len(quotes) > 15
    code = re.sub(r"\"\s+f?\"", "", sources)  # messages broken over lines
    for quote in quotes:
        for part in re.split(
            r" ?\.\.\.|\d[\d:x]*|--[a-z0-9-]+|WORLD_SIZE|\b(?:NaN|nan|uncased|cased|f1|fields)\b", quote
        ):
            assert part.strip(" ,;:()") in code, quote
