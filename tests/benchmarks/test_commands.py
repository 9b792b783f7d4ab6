"""The commands that measure speed and memory: their tables, and that both sides computed the same."""

import importlib
import json

import pytest
import torch

from benchmarks import growth, preprocess, stock_trainer
from benchmarks.report import format_cell
from benchmarks.timing import run_process
from benchmarks.untrained import mixed_texts, save_models, save_small_encoder
from sot_fairseq.tokenizers.subwords import Gpt2Subwords


@pytest.fixture
def tables(tmp_path, capsys):
    """Runs a command with ``--quick``; its tables by title, which are the same on paper and in the JSON file."""
    threads = torch.get_num_threads()

    def run(name, *words):
        path = tmp_path / f"{name}.json"
        module = importlib.import_module(f"benchmarks.{name}")
        module.main(["--quick", "--device", "cpu", "--threads", "1", "--json", str(path), *map(str, words)])
        content, printed = json.loads(path.read_text()), capsys.readouterr().out
        assert printed.startswith(f"{content['where']}\n{content['settings']}\n")
        assert content["where"].startswith(f"torch {torch.__version__}, CPU, 1 threads")
        found = {}
        for table in content["tables"]:
            section = printed.split(f"### {table['title']}\n\n")[1].split("\n\n")[0].splitlines()
            cells = [[cell.strip() for cell in line.strip("|").split(" | ")] for line in section]
            columns = list(table["rows"][0])
            assert cells[0] == columns
            assert cells[2:] == [[format_cell(row.get(column)) for column in columns] for row in table["rows"]]
            found[table["title"]] = table["rows"]
            for row in table["rows"]:
                numbers = [value for column, value in row.items() if "ratio" in column and value is not None]
                assert all(number > 0.0 for number in numbers)
        return found

    yield run
    torch.set_num_threads(threads)


def by_name(rows, column=""):
    return {row[column]: row for row in rows}


@pytest.fixture(scope="module")
def encoder(tmp_path_factory):
    return save_small_encoder(tmp_path_factory.mktemp("encoder"))


def test_cells_have_three_digits():
    values = [1234.5, 12.34, 1.0, 0.5, 0.01234, 3e-5, 0.0, 12345, "a", None]
    assert [format_cell(value) for value in values] == [
        *("1,234", "12.3", "1.00", "0.500", "0.0123", "3e-05", "0", "12,345", "a", ""),
    ]


def test_head(tables):
    (rows,) = tables("head", "--padding", "0", "0.3").values()
    names = ["naive", "sot_core", "sot_core, plain projection", "linear on CLS", "floor"]
    assert [row["head"] for row in rows] == names * 2
    assert all(row["difference"] < 1e-4 for row in rows if row["difference"] is not None)


def test_glue_step(tables, encoder):
    steps, evaluations, fairseq = tables("glue_step", "--model", encoder).values()
    steps = by_name(steps)
    for loss in ("first loss", "last loss"):
        for name in ("transformers' Trainer", "sot_hf, CLS head"):
            assert steps[name][loss] == pytest.approx(steps["plain loop"][loss], rel=1e-5)
    assert steps["sot_hf, MGCrP head"]["first loss"] != steps["plain loop"]["first loss"]
    evaluations = by_name(evaluations)
    stock = evaluations["transformers' Trainer"]["loss"]
    assert evaluations["sot_hf, CLS head"]["loss"] == pytest.approx(stock, rel=1e-5)
    fairseq = by_name(fairseq)
    assert fairseq["sot_fairseq, CLS head"]["loss before"] == fairseq["stock"]["loss before"]
    assert fairseq["sot_fairseq, CLS head"]["padding"] < fairseq["stock"]["padding"]
    assert "sot_fairseq, MGCrP head" in fairseq


def test_validate(tables):
    (rows,) = tables("validate").values()
    assert [row[""] for row in rows] == ["stock", "stock criterion", "sot_fairseq"]
    assert len({row["loss"] for row in rows}) == 1
    assert [round(row["accuracy"], 1) for row in rows] == [rows[0]["accuracy"]] * 3
    assert all(row["lower quartile"] <= row["ratio"] <= row["upper quartile"] for row in rows)
    assert [rows[1][name] for name in ("lower quartile", "ratio", "upper quartile")] == [1.0] * 3  # to itself


def test_predict(tables, encoder, tmp_path):
    models = save_models(encoder, tmp_path)
    (rows,) = tables("predict", models["sot_hf"]).values()
    rows = by_name(rows)
    assert next(iter(rows)) == "transformers pipeline"
    for name in ("sot_hf, float32", "sot_fairseq, float32"):
        assert rows[name]["labels as the pipeline's"] == 16


def test_load(tables):
    training, evaluation = tables("load").values()
    assert [row[""] for row in training] == ["timm", "vision", "Pillow's decoding"]
    assert {row["images"] for row in (*training, *evaluation)} == {8}
    assert [row["same pixels"] for row in evaluation[:2]] == ["yes", "yes"]


def test_vision_step(tables):
    (rows,) = tables("vision_step").values()
    assert [row["model"] for row in rows] == ["sot_tiny", "sot_tiny, plain embedding", "deit_tiny_patch16_224"]


def test_memory(tables, encoder):
    (rows,) = tables("memory", "--model", encoder).values()
    rows = by_name(rows)
    assert list(rows) == ["transformers", "sot_hf, CLS head", "sot_hf, MGCrP head"]
    assert rows["sot_hf, CLS head"]["weights, MiB"] == pytest.approx(rows["transformers"]["weights, MiB"], rel=1e-3)
    assert all(row["extra, MiB"] > row["weights, MiB"] for row in rows.values())  # gradients and AdamW's averages


def test_start(tables):
    (rows,) = tables("start").values()
    assert [row["command"] for row in rows] == ["sot_visual.compare", "import torch"]
    assert all(row["CPU seconds"] > 0.0 for row in rows)


def test_a_failing_process_is_told():
    with pytest.raises(RuntimeError, match=r"exit status 3: .*\nwhy"):
        run_process(["python", "-c", "print('why'); raise SystemExit(3)"])


def test_the_peak_of_a_process_is_its_own():
    ballast = bytearray(2**28)
    assert run_process(["python", "-c", "import time; time.sleep(0.2)"]).peak < 100
    del ballast


def test_growth(tables, tmp_path):
    by_tokens, by_batch, validation = tables("growth", "--output", tmp_path / "growth.png").values()
    assert [row["tokens"] for row in by_tokens] == [16, 16]
    assert [row["batch"] for row in by_batch] == [2, 2]
    assert {row["rows"] for row in validation} == {32}
    assert (tmp_path / "growth.png").read_bytes().startswith(b"\x89PNG")
    assert growth.CONTENDERS == ("naive", "sot_core")


def test_the_stock_trainer_trains(encoder, tmp_path, capsys):
    words = ["--model", encoder, "--data-dir", preprocess.DEMO_CORPUS / "CoLA", "--output-dir", tmp_path, "--use-cpu"]
    stock_trainer.main([str(word) for word in (*words, "--rows", 32, "--group-by-length")])
    assert "eval_mcc" in capsys.readouterr().out
    assert (tmp_path / "model.safetensors").is_file()


def test_the_small_bpe_is_like_gpt2s(tmp_path):
    ids, counts = Gpt2Subwords(preprocess.make_bpe(tmp_path)).encode(["the witch", "the witch"])
    assert counts[0] == counts[1] < len("the witch")
    assert (ids[: counts[0]] == ids[counts[0] :]).all()


def test_texts_have_mixed_lengths():
    words = [len(text.split()) for text in mixed_texts(16)]
    assert max(words) > 4 * min(words)
