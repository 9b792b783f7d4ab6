"""The command ``python -m sot_fairseq.preprocess``: against fairseq's own tools and tasks, and with bad input."""

import json
import subprocess
import sys
import unicodedata
from itertools import product
from pathlib import Path

import numpy as np
import pytest
from fairseq.data import data_utils
from fairseq.tasks.sentence_prediction import SentencePredictionConfig, SentencePredictionTask

from sot_base.errors import UsageError
from sot_fairseq.data import binarize
from sot_fairseq.data.header import DataHeader
from sot_fairseq.preprocess import main
from sot_fairseq.tokenizers.tokenization import TextEncoder
from tests.sot_fairseq.tokenizer_files import NASTY, SENTENCES, tiny_gpt2, tiny_wordpiece

PAIR_HEADER = ["index", "sentence1", "sentence2", "label"]


@pytest.fixture(scope="module")
def gpt2_folder(tmp_path_factory):
    return tiny_gpt2(tmp_path_factory.mktemp("gpt2"))


def write_tsv(path: Path, header: list[str] | None, *rows: tuple) -> None:
    lines = ([header] if header else []) + [list(map(str, row)) for row in rows]
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join("\t".join(line) + "\n" for line in lines), encoding="utf-8", newline="")


def write_rte(folder: Path) -> Path:
    train = [(i, SENTENCES[i % 4], SENTENCES[-i % 3], ("not_entailment", "entailment")[i % 3 == 0]) for i in range(12)]
    write_tsv(folder / "train.tsv", PAIR_HEADER, *train)
    write_tsv(folder / "dev.tsv", PAIR_HEADER, (0, "A dog.", "", "entailment"), (1, "", "A cat.", "not_entailment"))
    write_tsv(folder / "test.tsv", PAIR_HEADER[:3], (0, "One", "two three"))
    return folder


def run(data: Path, output: Path, *options: str, gpt2: Path | None = None) -> DataHeader:
    bpe = ["--bpe", "gpt2", "--gpt2-bpe-dir", str(gpt2)] if gpt2 else []
    main(["--data-dir", str(data), "--output-dir", str(output), *bpe, *options])
    return DataHeader.load(output)


def sentences(output: Path, name: str, split: str) -> list[list[int]]:
    """Read a split with fairseq."""
    dataset = data_utils.load_indexed_dataset(str(output / name / split), None)
    return [dataset[i].tolist() for i in range(len(dataset))]


def stock(jobs: list[tuple[Path, Path, str, Path]]) -> None:
    for _, folder, _, _ in jobs:
        folder.mkdir(parents=True, exist_ok=True)
    script = Path(__file__).with_name("stock_preprocess.py")
    arguments = json.dumps([list(map(str, job)) for job in jobs])
    subprocess.run([sys.executable, script, arguments], check=True, capture_output=True)


def assert_same_files(ours: Path, theirs: Path, *splits: str) -> None:
    for name in ["dict.txt", *(f"{split}.{suffix}" for split in splits for suffix in ("bin", "idx"))]:
        assert (ours / name).read_bytes() == (theirs / name).read_bytes(), name


def test_nasty_text_is_byte_identical_to_fairseq(tmp_path, gpt2_folder):
    texts = (NASTY + SENTENCES) * 30  # more lines than one job of fairseq's pool, and a few chunks of its readers
    for name, column in (("train", texts), ("dev", NASTY[::-1])):
        write_tsv(
            tmp_path / "data" / f"{name}.tsv", ["text", "label"], *((text, i % 2) for i, text in enumerate(column))
        )
        (tmp_path / f"{name}.txt").write_text("".join(f"{text}\n" for text in column), encoding="utf-8", newline="")
    stock(
        [
            (tmp_path / f"{file}.txt", tmp_path / "stock", split, gpt2_folder)
            for file, split in (("train", "train"), ("dev", "valid"))
        ]
    )
    header = run(
        tmp_path / "data", tmp_path / "out", "--text-columns", "text", "--label-column", "label", gpt2=gpt2_folder
    )
    assert_same_files(tmp_path / "out" / "input0", tmp_path / "stock", "train", "valid")
    assert header.splits["train"].rows == len(texts)


@pytest.mark.slow
def test_real_data_is_byte_identical_to_fairseq(tmp_path, shared):
    bpe, data = shared / "data" / "gpt2_bpe", shared / "data" / "glue"
    columns = {"RTE": {"input0": 1, "input1": 2}, "CoLA": {"input0": 3}}
    jobs = []
    for name, (file, split) in product(columns, (("train", "train"), ("dev", "valid"))):
        lines = (data / name / f"{file}.tsv").read_text(encoding="utf-8").removesuffix("\n").split("\n")
        rows = [line.split("\t") for line in lines[name == "RTE" :]]
        for input_name, column in columns[name].items():
            text = tmp_path / f"{name}.{split}.{input_name}"
            text.write_text("".join(row[column] + "\n" for row in rows), encoding="utf-8", newline="")
            jobs.append((text, tmp_path / "stock" / name / input_name, split, bpe))
    stock(jobs)
    for name, inputs in columns.items():
        run(data, tmp_path / "out" / name, "--task", name, gpt2=bpe)
        for folder in inputs:
            assert_same_files(tmp_path / "out" / name / folder, tmp_path / "stock" / name / folder, "train", "valid")


@pytest.mark.parametrize("kind", ["gpt2", "wordpiece"])
def test_fairseq_task_reads_the_folder(tmp_path, gpt2_folder, kind):
    data, output = write_rte(tmp_path / "RTE"), tmp_path / "out"
    options = ["--bpe", "wordpiece", "--vocab", str(tiny_wordpiece(tmp_path))] if kind == "wordpiece" else []
    header = run(data, output, "--task", "rte", *options, gpt2=gpt2_folder if kind == "gpt2" else None)
    config = SentencePredictionConfig(
        data=str(output),
        num_classes=header.num_classes,
        init_token=header.init_token,
        no_shuffle=True,
        separator_token=header.separator_token,
        max_positions=512,
        regression_target=False,
        seed=1,
    )
    task = SentencePredictionTask.setup_task(config)
    assert task.label_dictionary.symbols[4:-1] == ["entailment", "not_entailment"]
    encoder = TextEncoder.from_folder(output / "tokenizer")
    for split in ("train", "valid", "test"):
        dataset = task.load_dataset(split)
        counts = header.splits[split]
        assert len(dataset) == counts.rows
        assert dataset.sizes[0].max() == counts.longest
    valid = task.datasets["valid"]
    first, second = (ids.tolist() for ids in encoder.encode_batch(["A dog.", ""]))
    separator = [2] if kind == "gpt2" else []
    assert valid[0]["net_input.src_tokens"].tolist() == [0, *first, *separator, *second]
    assert [valid[row]["target"].tolist() for row in range(2)] == [[0], [1]]
    assert "target" not in task.datasets["test"][0]
    assert not (output / "label" / "test.bin").exists()
    assert all(len(token) for token in task.source_dictionary.symbols)
    assert len(task.source_dictionary) == encoder.vocab_size + 1


def test_labels_are_byte_identical_to_fairseq_with_the_same_dictionary(tmp_path, gpt2_folder):
    from fairseq_cli.preprocess import cli_main

    data, output = write_rte(tmp_path / "RTE"), tmp_path / "out"
    run(data, output, "--task", "RTE", gpt2=gpt2_folder)
    labels = [line.split("\t")[3] for line in (data / "train.tsv").read_text().splitlines()[1:]]
    (tmp_path / "labels").write_text("".join(f"{label}\n" for label in labels))
    arguments = ["--only-source", "--trainpref", tmp_path / "labels", "--srcdict", output / "label" / "dict.txt"]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "argv", ["fairseq-preprocess", *map(str, arguments), "--destdir", str(tmp_path / "stock")])
        cli_main()
    assert_same_files(output / "label", tmp_path / "stock", "train")


def test_carriage_return_inside_a_row_does_not_break_it(tmp_path, gpt2_folder):
    for name in ("train", "dev"):
        write_tsv(tmp_path / f"{name}.tsv", ["text", "label"], ("A\rdog.", "x"), ("\r", "y"))
    output = tmp_path / "out"
    run(tmp_path, output, "--text-columns", "text", "--label-column", "label", gpt2=gpt2_folder)
    encoder = TextEncoder.from_folder(output / "tokenizer")
    assert sentences(output, "input0", "train") == [ids.tolist() for ids in encoder.encode_batch(["A\rdog.", ""])]


def test_label_order_does_not_depend_on_frequency(tmp_path, gpt2_folder):
    for name, labels in (("a", "xyy"), ("b", "yxx")):
        rows = [("A dog.", label) for label in labels]
        write_tsv(tmp_path / name / "train.tsv", ["text", "label"], *rows)
        write_tsv(tmp_path / name / "dev.tsv", ["text", "label"], ("A cat.", "Y"), ("A cat.", "x"))
        own = ["--text-columns", "text", "--label-column", "label"]
        header = run(tmp_path / name, tmp_path / f"{name}-bin", *own, gpt2=gpt2_folder)
        assert header.labels == ("x", "y")
        assert sentences(tmp_path / f"{name}-bin", "label", "valid") == [[5, 2], [4, 2]]
    assert (tmp_path / "a-bin" / "label" / "dict.txt").read_text() == "x 1\ny 2\n"
    assert (tmp_path / "b-bin" / "label" / "dict.txt").read_text() == "x 2\ny 1\n"
    header = run(tmp_path / "a", tmp_path / "a-bin", *own, "--labels", "y,x", gpt2=gpt2_folder)
    assert header.labels == ("y", "x")
    assert sentences(tmp_path / "a-bin", "label", "valid") == [[4, 2], [5, 2]]


def test_regression_keeps_raw_numbers_and_fairseq_reads_them(tmp_path, gpt2_folder):
    header = [
        "index",
        "genre",
        "filename",
        "year",
        "old_index",
        "source1",
        "source2",
        "sentence1",
        "sentence2",
        "score",
    ]
    for name, scores in (("train", ("5.000", "0", "3.2")), ("dev", ("2.4", "1"))):
        rows = [(i, *"gfyoss", "A dog.", "A cat.", score) for i, score in enumerate(scores)]
        write_tsv(tmp_path / "STS-B" / f"{name}.tsv", header, *rows)
    write_tsv(tmp_path / "STS-B" / "test.tsv", header[:-1], (0, *"gfyoss", "A dog.", "A cat."))
    found = run(tmp_path, tmp_path / "out", "--task", "stsb", gpt2=gpt2_folder)
    assert (found.regression, found.label_range, found.labels, found.num_classes) == (True, (0.0, 5.0), (), 1)
    assert found.main_metric == "pearson_and_spearman"
    assert [float(line) for line in (tmp_path / "out" / "label" / "train.label").read_text().split()] == [5.0, 0.0, 3.2]
    config = SentencePredictionConfig(
        data=str(tmp_path / "out"), num_classes=1, no_shuffle=True, regression_target=True, max_positions=512, seed=1
    )
    dataset = SentencePredictionTask.setup_task(config).load_dataset("valid")
    assert [dataset[row]["target"] for row in range(2)] == [[2.4], [1.0]]


def test_mnli_keeps_both_dev_sets(tmp_path, gpt2_folder):
    rows = {
        "train": ("neutral", "contradiction", "entailment"),
        "dev_matched": ("entailment", "neutral"),
        "dev_mismatched": ("contradiction",),
    }
    for name, labels in rows.items():
        header = ["index", "sentence1", "sentence2", "label1", "gold_label"]
        write_tsv(tmp_path / f"{name}.tsv", header, *((i, "A dog.", "A cat.", "-", x) for i, x in enumerate(labels)))
    header = run(tmp_path, tmp_path / "out", "--task", "MNLI", gpt2=gpt2_folder)
    assert {name: (split.source, split.rows) for name, split in header.splits.items()} == {
        "train": ("train.tsv", 3),
        "valid": ("dev_matched.tsv", 2),
        "valid1": ("dev_mismatched.tsv", 1),
    }
    assert sentences(tmp_path / "out", "label", "valid1") == [[6, 2]]


def test_cola_files_without_a_header_and_windows_line_ends(tmp_path, gpt2_folder):
    rows = [("gj04", 1, "", "A dog."), ("gj04", 0, "*", "Dog a."), ("gj04", 1, "", 'An "unbalanced quote.')]
    for name in ("train", "dev"):
        write_tsv(tmp_path / "unix" / f"{name}.tsv", None, *rows)
        content = (tmp_path / "unix" / f"{name}.tsv").read_bytes().removesuffix(b"\n").replace(b"\n", b"\r\n")
        (tmp_path / "windows").mkdir(exist_ok=True)
        (tmp_path / "windows" / f"{name}.tsv").write_bytes(b"\xef\xbb\xbf" + content)
    folders = {name: tmp_path / f"{name}-bin" for name in ("unix", "windows")}
    for name, output in folders.items():
        assert run(tmp_path / name, output, "--task", "CoLA", gpt2=gpt2_folder).splits["valid"].rows == 3
    for file in ("input0/train.bin", "input0/train.idx", "label/valid.bin", "label/dict.txt"):
        assert (folders["unix"] / file).read_bytes() == (folders["windows"] / file).read_bytes()
    assert sentences(folders["unix"], "label", "train") == [[5, 2], [4, 2], [5, 2]]


def test_qqp_drops_broken_rows_of_train_but_refuses_them_in_test(tmp_path, gpt2_folder):
    header = ["id", "qid1", "qid2", "question1", "question2", "is_duplicate"]
    for name in ("train", "dev"):
        write_tsv(
            tmp_path / f"{name}.tsv", header, (0, 1, 2, "a", "b", 0), ("rest of a question",), (1, 1, 2, "c", "d", 1)
        )
    found = run(tmp_path, tmp_path / "out", "--task", "qqp", gpt2=gpt2_folder)
    assert (found.splits["train"].rows, found.splits["train"].skipped) == (2, 1)
    assert len(sentences(tmp_path / "out", "input1", "train")) == 2
    write_tsv(tmp_path / "test.tsv", ["id", "question1", "question2"], (0, "a", "b"), (1, "c"))
    with pytest.raises(UsageError, match=r"2 fields where 3 are expected: .*test.tsv line 3"):
        run(tmp_path, tmp_path / "out", "--task", "qqp", gpt2=gpt2_folder)


def test_chunks_change_nothing(tmp_path, gpt2_folder, monkeypatch):
    data = write_rte(tmp_path / "RTE")
    whole = run(data, tmp_path / "whole", "--task", "RTE", "--max-length", "20", gpt2=gpt2_folder)
    monkeypatch.setattr(binarize, "CHUNK", 5)
    assert run(data, tmp_path / "parts", "--task", "RTE", "--max-length", "20", gpt2=gpt2_folder) == whole
    for file in sorted((tmp_path / "whole").rglob("*.*")):
        assert file.read_bytes() == (tmp_path / "parts" / file.relative_to(tmp_path / "whole")).read_bytes()


@pytest.mark.parametrize("kind,specials", [("gpt2", 4), ("wordpiece", 3)])
def test_max_length_keeps_separators(tmp_path, gpt2_folder, caplog, kind, specials):
    data = write_rte(tmp_path / "RTE")
    words = ["." * count for count in (40, 3, 40, 2)]
    write_tsv(
        data / "dev.tsv",
        PAIR_HEADER,
        (0, *words[:2], "entailment"),
        (1, *words[2:], "entailment"),
        (2, "a", "a", "entailment"),
    )
    options = ["--bpe", "wordpiece", "--vocab", str(tiny_wordpiece(tmp_path))] if kind == "wordpiece" else []
    gpt2 = gpt2_folder if kind == "gpt2" else None
    full = run(data, tmp_path / "full", "--task", "RTE", *options, gpt2=gpt2)
    found = run(data, tmp_path / "out", "--task", "RTE", "--max-length", "16", *options, gpt2=gpt2)
    assert full.splits["valid"].longest == 43 + specials
    assert (full.max_length, full.splits["valid"].truncated) == (None, 0)
    assert (found.max_length, found.splits["valid"].truncated, found.splits["valid"].longest) == (16, 2, 16)
    assert "dev.tsv: 2 of 3 samples shortened to 16" in caplog.text
    first, second = (sentences(tmp_path / "out", name, "valid") for name in ("input0", "input1"))
    assert [len(row) for row in first] == [16 - specials - 3 + 1, 16 - specials - 2 + 1, 2]
    assert [len(row) for row in second] == [4, 3, 2]
    assert all(row[-1] == 2 and 2 not in row[:-1] for row in first + second)
    whole = sentences(tmp_path / "full", "input0", "valid")
    assert [row[:-1] for row in first] == [full_row[: len(row) - 1] for full_row, row in zip(whole, first, strict=True)]


def test_max_length_too_small(tmp_path, gpt2_folder):
    data = write_rte(tmp_path / "RTE")
    with pytest.raises(UsageError, match="max length 5 leaves no word beside 4 special tokens; give 6 or more"):
        run(data, tmp_path / "out", "--task", "RTE", "--max-length", "5", gpt2=gpt2_folder)
    assert (
        run(data, tmp_path / "out", "--task", "RTE", "--max-length", "6", gpt2=gpt2_folder).splits["train"].longest == 6
    )


def test_header_says_what_is_there(tmp_path, gpt2_folder):
    output = tmp_path / "out"
    header = run(write_rte(tmp_path / "RTE"), output, "--task", "RTE", gpt2=gpt2_folder)
    assert (header.task, header.labels, header.num_inputs, header.bpe) == (
        "RTE",
        ("entailment", "not_entailment"),
        2,
        "gpt2",
    )
    assert (header.init_token, header.separator_token, header.lower_case) == (0, 2, None)
    assert {name: split.labelled for name, split in header.splits.items()} == {
        "train": True,
        "valid": True,
        "test": False,
    }
    for name, split in header.splits.items():
        rows = [sentences(output, f"input{number}", name) for number in range(2)]
        assert split.tokens == sum(len(row) for column in rows for row in column)
        assert split.longest == max(len(a) + len(b) + 2 for a, b in zip(*rows, strict=True))
    cased = ["--bpe", "wordpiece", "--vocab", str(tiny_wordpiece(tmp_path, cased=True))]
    header = run(tmp_path / "RTE", output, "--task", "RTE", *cased)
    assert (header.bpe, header.lower_case, header.separator_token, header.vocab_file) == (
        "wordpiece",
        False,
        None,
        "vocab.txt",
    )


@pytest.mark.parametrize("content", [None, "{", "[]", '{"format_version": 99}', '{"format_version": 1}'])
def test_broken_header(tmp_path, content):
    if content is not None:
        (tmp_path / "preprocess.json").write_text(content)
    with pytest.raises(UsageError, match=r"preprocess.json.*; make the folder with python -m sot_fairseq.preprocess"):
        DataHeader.load(tmp_path)


def broken(folder: Path, file: str, line: int, change) -> None:
    lines = (folder / file).read_text().split("\n")
    lines[line - 1] = change(lines[line - 1])
    (folder / file).write_text("\n".join(lines))


@pytest.mark.parametrize(
    "file,line,change,message",
    [
        ("dev.tsv", 3, lambda text: text.replace("not_entailment", "neutral"),
         "unknown label 'neutral': {data}/dev.tsv line 3, column 'label'; use one of entailment, not_entailment"),
        ("train.tsv", 5, lambda text: text.replace("\t", " ", 1),
         "3 fields where 4 are expected: {data}/train.tsv line 5;"),
        ("dev.tsv", 2, lambda text: text + "\t", "5 fields where 4 are expected: {data}/dev.tsv line 2;"),
        ("train.tsv", 1, lambda text: text.replace("sentence2", "hypothesis"),
         "no column 'sentence2': {data}/train.tsv line 1 has index, sentence1, hypothesis, label;"),
        ("test.tsv", 2, lambda text: "0\tone", "2 fields where 3 are expected: {data}/test.tsv line 2;"),
    ],
)  # fmt: skip
@pytest.mark.parametrize("before", ["nothing", "older"])
def test_malformed_input_changes_nothing(tmp_path, gpt2_folder, file, line, change, message, before):
    data, output = write_rte(tmp_path / "RTE"), tmp_path / "bin" / "RTE"
    if before == "older":
        run(data, output, "--task", "RTE", gpt2=gpt2_folder)
    output.parent.mkdir(exist_ok=True)
    files = {path: path.read_bytes() for path in sorted(output.parent.rglob("*")) if path.is_file()}
    broken(data, file, line, change)
    with pytest.raises(UsageError) as error:
        run(data, output, "--task", "RTE", gpt2=gpt2_folder)
    assert str(error.value).startswith(message.format(data=data))
    assert {path: path.read_bytes() for path in sorted(output.parent.rglob("*")) if path.is_file()} == files
    assert [path.name for path in output.parent.iterdir()] == (["RTE"] if before == "older" else [])


def test_older_output_is_replaced_as_a_whole(tmp_path, gpt2_folder):
    data, output = write_rte(tmp_path / "RTE"), tmp_path / "out"
    run(data, output, "--task", "RTE", gpt2=gpt2_folder)
    (data / "test.tsv").unlink()
    run(data, output, "--task", "RTE", gpt2=gpt2_folder)
    assert not list(output.rglob("test.*"))
    assert sorted(path.name for path in tmp_path.iterdir()) == ["RTE", "out"]


def test_other_folders_are_never_replaced(tmp_path, gpt2_folder):
    data = write_rte(tmp_path / "RTE")
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis.tex").write_text("precious")
    for output, message in (
        (tmp_path / "mine", "not an older output"),
        (data, "its own input"),
        (tmp_path, "own input"),
    ):
        with pytest.raises(UsageError, match=message):
            run(data, output, "--task", "RTE", gpt2=gpt2_folder)
    assert (tmp_path / "mine" / "thesis.tex").read_text() == "precious"
    (tmp_path / "empty").mkdir()
    assert run(data, tmp_path / "empty", "--task", "RTE", gpt2=gpt2_folder).task == "RTE"


@pytest.mark.parametrize(
    "options,message",
    [
        ([], "no task: the command line; give --task, or --text-columns and --label-column"),
        (["--task", "snli"], "no such task: 'snli'; use one of CoLA"),
        (["--task", "RTE", "--labels", "a,b"], "options for custom data beside --task RTE"),
        (["--task", "RTE", "--regression"], "options for custom data beside --task RTE"),
        (["--text-columns", "a", "--label-column", "l", "--labels", "x,x"], "'x' is repeated: --labels"),
        (["--text-columns", "a", "--label-column", "l", "--labels", "x"], "fewer than two labels"),
        (["--task", "RTE", "--cased"], "--cased or --uncased with --bpe gpt2"),
        (["--task", "RTE", "--force-lower-case"], "--force-lower-case with --bpe gpt2"),
        (["--task", "CoLA"], "no train.tsv: "),
    ],
)  # fmt: skip
def test_wrong_options(tmp_path, gpt2_folder, options, message):
    (tmp_path / "data").mkdir()
    with pytest.raises(UsageError, match=message):
        run(tmp_path / "data", tmp_path / "out", *options, gpt2=gpt2_folder)
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("bpe,option", [("gpt2", "--gpt2-bpe-dir"), ("wordpiece", "--vocab")])
def test_tokenizer_files_are_asked_for(tmp_path, bpe, option):
    with pytest.raises(UsageError, match=f"no tokenizer files: --bpe {bpe}; give {option}"):
        run(tmp_path, tmp_path / "out", "--task", "RTE", "--bpe", bpe)


@pytest.mark.parametrize("cased", [False, True])
def test_casing_is_enforced(tmp_path, cased):
    data = write_rte(tmp_path / "RTE")
    options = ["--task", "RTE", "--bpe", "wordpiece", "--vocab", str(tiny_wordpiece(tmp_path, cased))]
    right, wrong = ("--cased", "--uncased")[:: 1 if cased else -1]
    with pytest.raises(UsageError, match=f"say {right}"):
        run(data, tmp_path / "out", *options, wrong)
    assert run(data, tmp_path / "out", *options, right).lower_case is not cased
    upper = sentences(tmp_path / "out", "input0", "train")
    for name in ("train", "dev"):
        path = data / f"{name}.tsv"
        path.write_text(path.read_text().replace("The sailors", "the sailors"))
    run(data, tmp_path / "out", *options)
    assert (sentences(tmp_path / "out", "input0", "train") == upper) is not cased


def test_lower_case_by_force(tmp_path):
    data = write_rte(tmp_path / "RTE")
    options = ["--task", "RTE", "--bpe", "wordpiece", "--vocab", str(tiny_wordpiece(tmp_path, cased=True))]
    assert run(data, tmp_path / "out", *options, "--force-lower-case").lower_case is True
    lower = sentences(tmp_path / "out", "input0", "train")
    run(data, tmp_path / "out", *options)
    assert sentences(tmp_path / "out", "input0", "train") != lower
    for name in ("train", "dev"):
        path = data / f"{name}.tsv"
        header, text = path.read_text().split("\n", 1)
        plain = unicodedata.normalize("NFD", text.lower())  # accents go with the case
        path.write_text(header + "\n" + "".join(letter for letter in plain if unicodedata.category(letter) != "Mn"))
    run(data, tmp_path / "out", *options)
    assert sentences(tmp_path / "out", "input0", "train") == lower


def test_relative_paths_with_blanks(tmp_path, gpt2_folder, monkeypatch, capsys):
    write_rte(tmp_path / "glue data" / "RTE")
    monkeypatch.chdir(tmp_path)
    run(Path("glue data"), Path("out/RTE bin"), "--task", "RTE", gpt2=gpt2_folder)
    assert (tmp_path / "out" / "RTE bin" / "input1" / "valid.idx").exists()
    printed = capsys.readouterr().out
    assert "train (train.tsv): 12 rows" in printed
    assert "labels: entailment, not_entailment" in printed


@pytest.mark.e2e
def test_command_line_ends_with_status_2(tmp_path, gpt2_folder):
    data = write_rte(tmp_path)
    broken(data, "dev.tsv", 3, lambda text: text.replace("not_entailment", "?"))
    command = [
        sys.executable,
        "-m",
        "sot_fairseq.preprocess",
        "--task",
        "RTE",
        "--data-dir",
        ".",
        "--output-dir",
        "out",
    ]
    command += ["--bpe", "gpt2", "--gpt2-bpe-dir", str(gpt2_folder)]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert "error: unknown label '?': dev.tsv line 3, column 'label'; use one of entailment" in done.stderr
    assert "Traceback" not in done.stderr
    assert not (tmp_path / "out").exists()


def test_truncation_is_that_of_removing_one_token_at_a_time():
    from sot_fairseq.data.truncation import longest_first

    def slow(first: int, second: int, budget: int) -> tuple[int, int]:
        while first + second > budget:
            first, second = (first - 1, second) if first > second else (first, second - 1)
        return first, second

    first, second = (grid.ravel() for grid in np.meshgrid(np.arange(14), np.arange(14)))
    for budget in range(1, 20):
        found = np.stack(longest_first(first, second, budget), axis=1).tolist()
        assert found == [list(slow(a, b, budget)) for a, b in zip(first.tolist(), second.tolist(), strict=True)]


@pytest.mark.parametrize("vocab_size,dtype", [(65499, "uint16"), (65500, "uint32")])
def test_integer_type_is_that_of_fairseq(tmp_path, vocab_size, dtype):
    import torch
    from fairseq.data.indexed_dataset import make_builder

    from sot_fairseq.data.indexed import IndexedWriter

    rows = [[4, 2], [2], [vocab_size - 1, 7, 2]]
    builder = make_builder(str(tmp_path / "stock.bin"), "mmap", vocab_size)
    for row in rows:
        builder.add_item(torch.tensor(row))
    builder.finalize(str(tmp_path / "stock.idx"))
    with IndexedWriter(tmp_path / "ours", vocab_size) as writer:
        assert writer.dtype == dtype
        writer.write(np.concatenate(rows[:2]), np.array([2, 1]))
        writer.write(np.array(rows[2]), np.array([3]))
    for suffix in (".bin", ".idx"):
        assert (tmp_path / f"ours{suffix}").read_bytes() == (tmp_path / f"stock{suffix}").read_bytes()
