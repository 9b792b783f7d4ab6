"""The page that compares runs of texts and images: every seed is there, and a mistake names the file and the line."""

import json

import pytest

from sot_base.errors import UsageError
from sot_visual.compare import main
from sot_visual.run_results import read_run

SUMMARY = """epoch,train_loss,eval_loss,eval_top1,ema_eval_top1,lr
0,2.3,2.1,20.0,,0.1
1,2.0,1.9,31.5,30.25,0.1
2,1.9,1.95,30.0,32.0,0.05
"""


def seed(value, command):
    return {"metrics": {"dev": {"accuracy": value}}, "command": command}


@pytest.fixture
def text_run(tmp_path):
    folder = tmp_path / "sst-2"
    folder.mkdir()
    heads = {
        "cls": {"seeds": {"1": seed(75.5, "train <cls>"), "2": seed(76.5, None)}, "parameters": 770},
        "mgcrp": {"seeds": {"1": seed(83.0, None)}},
    }
    (folder / "results.json").write_text(json.dumps({"task": "SST-2", "metric": "accuracy", "heads": heads}))
    return folder


@pytest.fixture
def image_run(tmp_path):
    folder = tmp_path / "cifar"
    folder.mkdir()
    (folder / "summary.csv").write_text(SUMMARY)
    return folder


def test_runs_of_texts_and_images_on_one_page(text_run, image_run, tmp_path, capsys):
    output = tmp_path / "page.html"
    assert main([str(text_run), str(image_run), "--output", str(output)]) == 0
    page = output.read_text()
    for text in ("75.50 (1), 76.50 (2)", "76.00", "0.71", "770", "train &lt;cls&gt;", "83.00 (1)", "31.50 (epoch 1)"):
        assert text in page
    assert page.count("data:image/png;base64,") == 2
    assert capsys.readouterr().out == f"wrote {output}\n"


def test_the_best_epoch_of_each_metric(image_run):
    results, curve = read_run(image_run, "cifar")
    found = {(result.metric, result.head): result.values for result in results}
    assert found == {("top1", ""): {"epoch 1": 31.5}, ("top1", "averaged weights"): {"epoch 2": 32.0}}
    assert curve.unit == "epoch"
    assert curve.columns["train_loss"] == [2.3, 2.0, 1.9]


def test_runs_of_the_same_name_are_told_apart_by_their_paths(text_run, tmp_path):
    other = tmp_path / "other" / "sst-2"
    other.parent.mkdir()
    text_run.rename(other)
    text_run.mkdir()
    (text_run / "summary.csv").write_text(SUMMARY)
    main([str(text_run), str(other), "--output", str(tmp_path / "page.html")])
    page = (tmp_path / "page.html").read_text()
    assert str(other) in page
    assert str(text_run) in page


@pytest.mark.parametrize(
    "name, content, message",
    [
        ("results.json", "{", "results.json"),
        ("results.json", '{"task": "CoLA", "heads": {}}', "no metrics: .*results.json; "),
        (
            "results.json",
            '{"task": "CoLA", "heads": {"cls": {"seeds": {"1": {"metrics": 3}}}}}',
            "metrics.*results.json",
        ),
        ("summary.csv", "epoch,eval_top1\n", "no epochs: .*summary.csv; "),
        ("summary.csv", "epoch,eval_top1\n0,much\n", "much.*summary.csv, line 2; "),
        ("summary.csv", "epoch,eval_top1\n0,1\n1\n", "1 columns, the header has 2: .*summary.csv, line 3; "),
        ("summary.csv", "epoch,eval_top1\n1e999,1\n", "epoch 1e999: .*summary.csv, line 2; "),
        (
            "results.json",
            '{"task": "CoLA", "heads": {"cls": {"seeds": {"1": {"metrics": {"dev": {"mcc": 1e300}}}}}}}',
            r"mcc of head cls, seed 1 is 1e\+300: .*results.json; ",
        ),
        ("notes.txt", "", "neither results.json nor summary.csv: .*; "),
    ],
)
def test_mistakes(tmp_path, name, content, message):
    (tmp_path / name).write_text(content)
    with pytest.raises(UsageError, match=message):
        main([str(tmp_path), "--output", str(tmp_path / "page.html")])
    assert not (tmp_path / "page.html").exists()


def test_the_output_is_a_page(text_run):
    with pytest.raises(UsageError, match=r"not a page: --output page\.png; give a file that ends with \.html"):
        main([str(text_run), "--output", "page.png"])
