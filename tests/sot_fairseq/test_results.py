"""The table of results: what is measured beside what is reported."""

import json
import re
import sys

import pytest

from sot_base.errors import UsageError
from sot_fairseq import results as fairseq_results
from sot_text import results_table as results
from tests.support import need_shared

NAMES = {"GPT": "gpt", "BERT-base": "bert.base.cased", "BERT-large": "bert.large.cased"}
NAMES |= {f"{name}-{size}": f"{name.lower()}.{size}" for name in ("SpanBERT", "RoBERTa") for size in ("base", "large")}


def run_of(encoder, task="RTE", split="dev", metric="accuracy", heads=("cls", "mgcrp")):
    metrics = [{split: {metric: value}} for value in (60.0, 70.0)]
    head = {
        "seeds": {str(seed): {"metrics": m, "command": None} for seed, m in enumerate(metrics)},
        "summary": results.summarize(metrics),
    }
    return {"task": task, "encoder": encoder, "metric": metric, "unit": "percent", "heads": dict.fromkeys(heads, head)}


def cells(text):
    rows = [
        [cell.strip() for cell in line.strip("|").split("|")] for line in text.splitlines() if line.startswith("| ")
    ]
    return [dict(zip(rows[0], row, strict=True)) for row in rows[1:]]


def test_reported_numbers_stand_in_a_column_of_their_own():
    text = results.table({"a": run_of("roberta.base"), "b": run_of("minilm"), "c": run_of(None)})
    rows = cells(text)
    assert [row["reported"] for row in rows] == ["77.60", "80.50", "-", "-", "-", "-"]
    assert {row["mean"] for row in rows} == {"65.00"}
    assert text.endswith(
        "reported: by the SoT authors for this encoder (one number each); the other columns: measured here."
    )


def test_no_column_where_nothing_is_reported():
    for run in (run_of("minilm"), run_of("roberta.base", heads=["gap"]), run_of("roberta.base", "SST-2")):
        text = results.table({"a": run})
        assert "reported" not in text
        assert cells(text)[0]["seeds"] == "60.00, 70.00"
    mismatched = run_of("bert.base.cased", "MNLI", "dev_mismatched")
    assert "reported" not in results.table({"a": mismatched})


def test_the_reported_numbers_are_those_of_the_readme():
    text = (need_shared("seeds") / "000_231a7db758eb00d0.md").read_text(encoding="utf-8")
    found = {}
    for name, ours, *values in re.findall(r"^\| ([\w-]+?)( \+ ours)? ?\|" + r" ([\d.]+) ?\|" * 4, text, re.M):
        if name not in NAMES:
            continue
        for task, value in zip(("CoLA", "RTE", "MNLI", "QNLI"), values, strict=True):
            split, metric = "dev_matched" if task == "MNLI" else "dev", "mcc" if task == "CoLA" else "accuracy"
            found[NAMES[name], task, split, metric, "mgcrp" if ours else "cls"] = float(value)
    assert len(found) == 56
    assert results.read_reported() == found


def test_saved_results_are_printed_without_evaluation(tmp_path, monkeypatch, capsys):
    (tmp_path / "rte").mkdir()
    (tmp_path / "rte" / "results.json").write_text(json.dumps(run_of("roberta.large")))
    monkeypatch.setattr(sys, "argv", ["results", "--saved", str(tmp_path / "rte")])
    fairseq_results.main()
    output = capsys.readouterr().out
    assert [row["reported"] for row in cells(output)] == ["86.60", "88.10"]
    assert "wrote" not in output
    (tmp_path / "rte" / "results.json").write_text("{")
    with pytest.raises(UsageError, match=r"not a JSON file .*leave out --saved"):
        fairseq_results.main()
    (tmp_path / "rte" / "results.json").write_text("{}")
    with pytest.raises(UsageError, match=r"task is missing: .*results.json; leave out --saved"):
        fairseq_results.main()
    (tmp_path / "rte" / "results.json").unlink()
    with pytest.raises(UsageError, match=r"no results\.json: .*leave out --saved"):
        fairseq_results.main()


def test_runs_of_the_same_name_are_all_in_the_table(tmp_path, monkeypatch, capsys):
    folders = [tmp_path / name for name in ("old/rte", "new/rte", "cola")]
    for folder, encoder in zip(folders, ("roberta.large", "roberta.base", "minilm"), strict=True):
        folder.mkdir(parents=True)
        (folder / "results.json").write_text(json.dumps(run_of(encoder, heads=["cls"])))
    monkeypatch.setattr(sys, "argv", ["results", "--saved", *map(str, folders)])
    fairseq_results.main()
    rows = cells(capsys.readouterr().out)
    names = [str(folders[0]), str(folders[1]), "cola"]
    assert [(row["run"], row["reported"]) for row in rows] == list(zip(names, ("86.60", "77.60", "-"), strict=True))
