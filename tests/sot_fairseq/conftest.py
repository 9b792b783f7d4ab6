"""A tiny corpus with a vocabulary of its own, and fairseq's command lines run inside the test process."""

import logging
import random

import pytest
from fairseq import options
from fairseq.dataclass.utils import convert_namespace_to_omegaconf
from fairseq_cli import train as fairseq_train

from sot_base.safe_checkpoint import read_checkpoint
from sot_fairseq import preprocess
from tests.support import REPOSITORY

WORDS = ["the", "a", "cat", "dog", "bird", "sees", "likes", "big", "small", "not", "well", "today"]
TINY = [
    *("--encoder-layers", "1", "--encoder-embed-dim", "16", "--encoder-ffn-embed-dim", "16"),
    *("--encoder-attention-heads", "2", "--max-positions", "32"),
    *("--mgcrp-heads", "2", "--mgcrp-q", "4", "--mgcrp-k", "3"),
]


def write_vocab(folder):
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "vocab.txt").write_text("\n".join(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *WORDS, "##s"]) + "\n")
    return folder / "vocab.txt"


def sentence(rng, longest=9):
    return " ".join(rng.choice(WORDS) for _ in range(rng.randint(1, longest)))


def write_rows(path, header, rows):
    lines = ["\t".join(header), *("\t".join(row) for row in rows)]
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("\n".join(lines) + "\n")


def preprocess_folder(source, output, *options):
    """`python -m sot_fairseq.preprocess` on train.tsv and dev.tsv of a folder."""
    vocab = write_vocab(source / "vocab")
    arguments = ["--data-dir", source, "--output-dir", output, "--bpe", "wordpiece", "--vocab", vocab, *options]
    preprocess.main([str(argument) for argument in arguments])
    return output


@pytest.fixture(scope="session")
def corpus(tmp_path_factory):
    """Single sentences with the labels good and bad: 61 for training, 23 for validation; bad ones have "not"."""
    folder = tmp_path_factory.mktemp("corpus")
    rng = random.Random(3)
    for name, count in (("train", 61), ("dev", 23)):
        texts = [sentence(rng) for _ in range(count)]
        rows = [(text, "bad" if "not" in text.split() or len(text) > 38 else "good") for text in texts]
        write_rows(folder / f"{name}.tsv", ("sentence", "label"), rows)
    return folder


@pytest.fixture(scope="session")
def data(corpus, tmp_path_factory):
    output = tmp_path_factory.mktemp("data") / "bin"
    return preprocess_folder(corpus, output, "--text-columns", "sentence", "--label-column", "label")


@pytest.fixture(scope="session")
def pair_data(tmp_path_factory):
    """Sentence pairs with the three labels of NLI."""
    folder = tmp_path_factory.mktemp("pairs")
    rng = random.Random(4)
    for name, count in (("train", 40), ("dev", 17)):
        rows = [(sentence(rng), sentence(rng), rng.choice(["yes", "no", "maybe"])) for _ in range(count)]
        write_rows(folder / f"{name}.tsv", ("first", "second", "label"), rows)
    columns = ("--text-columns", "first,second", "--label-column", "label")
    return preprocess_folder(folder, folder / "bin", *columns)


@pytest.fixture(scope="session")
def score_data(tmp_path_factory):
    """Sentence pairs with a number from 0 to 5."""
    folder = tmp_path_factory.mktemp("scores")
    rng = random.Random(5)
    for name, count in (("train", 30), ("dev", 19)):
        rows = [(sentence(rng), sentence(rng), f"{rng.uniform(0, 5):.3f}") for _ in range(count)]
        write_rows(folder / f"{name}.tsv", ("first", "second", "score"), rows)
    columns = ("--text-columns", "first,second", "--label-column", "score", "--regression")
    return preprocess_folder(folder, folder / "bin", *columns)


def command(data, save_dir, *words, criterion="sentence_prediction_mgcrp", arch="roberta"):
    """A fairseq-train command of a tiny model on the CPU."""
    return [
        *(str(data), "--user-dir", str(REPOSITORY / "sot_fairseq"), "--task", "sentence_prediction_mgcrp"),
        *("--criterion", criterion, "--arch", arch, *TINY),
        *("--optimizer", "adam", "--lr", "0.003", "--batch-size", "7", "--num-workers", "0", "--cpu"),
        *("--save-dir", str(save_dir), "--no-progress-bar", "--log-format", "simple", "--max-epoch", "1"),
        *("--no-epoch-checkpoints", *words),
    ]


def parse(words):
    """The configuration of a fairseq-train command."""
    args = options.parse_args_and_arch(options.get_training_parser(), [str(word) for word in words])
    return convert_namespace_to_omegaconf(args)


def run_train(data, save_dir, *words, **options_):
    """Run fairseq-train in this process; returns the checkpoint it left."""
    fairseq_train.main(parse(command(data, save_dir, *words, **options_)))
    checkpoint = save_dir / "checkpoint_last.pt"
    return read_checkpoint(checkpoint, lazy=False) if checkpoint.exists() else None


@pytest.fixture(autouse=True)
def _capture_all_messages(caplog):
    caplog.set_level(logging.INFO)
