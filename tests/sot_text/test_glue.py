import pytest

from sot_base.errors import UsageError
from sot_text.glue import GLUE_TASKS, custom_task, get_task
from sot_text.metrics import METRICS
from sot_text.tsv import read_tsv

# First lines of GLUE's files, as distributed; CoLA's train and dev files have none.
HEADERS = {
    ("CoLA", "test.tsv"): "index sentence",
    ("RTE", "train.tsv"): "index sentence1 sentence2 label",
    ("RTE", "dev.tsv"): "index sentence1 sentence2 label",
    ("RTE", "test.tsv"): "index sentence1 sentence2",
    ("SST-2", "train.tsv"): "sentence label",
    ("SST-2", "dev.tsv"): "sentence label",
    ("SST-2", "test.tsv"): "index sentence",
    ("QNLI", "train.tsv"): "index question sentence label",
    ("QNLI", "dev.tsv"): "index question sentence label",
    ("QNLI", "test.tsv"): "index question sentence",
    ("QQP", "train.tsv"): "id qid1 qid2 question1 question2 is_duplicate",
    ("QQP", "dev.tsv"): "id qid1 qid2 question1 question2 is_duplicate",
    ("QQP", "test.tsv"): "id question1 question2",
    ("WNLI", "train.tsv"): "index sentence1 sentence2 label",
    ("WNLI", "dev.tsv"): "index sentence1 sentence2 label",
    ("WNLI", "test.tsv"): "index sentence1 sentence2",
    ("STS-B", "train.tsv"): "index genre filename year old_index source1 source2 sentence1 sentence2 score",
    ("STS-B", "dev.tsv"): "index genre filename year old_index source1 source2 sentence1 sentence2 score",
    ("STS-B", "test.tsv"): "index genre filename year old_index source1 source2 sentence1 sentence2",
}
PARSES = "index promptID pairID genre sentence1_binary_parse sentence2_binary_parse sentence1_parse sentence2_parse"
for _part in ("matched", "mismatched"):
    HEADERS["MNLI", f"test_{_part}.tsv"] = f"{PARSES} sentence1 sentence2"
    HEADERS["MNLI", f"dev_{_part}.tsv"] = f"{PARSES} sentence1 sentence2 label1 label2 label3 label4 label5 gold_label"
HEADERS["MNLI", "train.tsv"] = f"{PARSES} sentence1 sentence2 label1 gold_label"
HEADERS = {key: line.split(" ") for key, line in HEADERS.items()}
for _file, _first in (("train.tsv", "Quality"), ("dev.tsv", "Quality"), ("test.tsv", "index")):
    HEADERS["MRPC", _file] = [_first, "#1 ID", "#2 ID", "#1 String", "#2 String"]

# Columns in fairseq's own GLUE recipe, counted from 1: text in train, label in train, text in test
RECIPE = {
    "QQP": ((4, 5), 6, (2, 3)),
    "MNLI": ((9, 10), 12, (9, 10)),
    "QNLI": ((2, 3), 4, (2, 3)),
    "MRPC": ((4, 5), 1, (4, 5)),
    "RTE": ((2, 3), 4, (2, 3)),
    "STS-B": ((8, 9), 10, (8, 9)),
    "SST-2": ((1,), 2, (2,)),
    "CoLA": ((4,), 2, (2,)),
}


@pytest.mark.parametrize("name", GLUE_TASKS)
def test_columns_are_those_of_the_files(name):
    task = GLUE_TASKS[name]
    for split in task.splits:
        header = list(split.header or HEADERS[name, split.file])
        assert set(split.text_columns) <= set(header)
        assert (split.label_column in header) == (not split.is_test)


@pytest.mark.parametrize("name", RECIPE)
def test_columns_are_where_the_recipe_of_fairseq_finds_them(name):
    by_split = {split.name: split for split in GLUE_TASKS[name].splits}
    text, label, test_text = RECIPE[name]
    header = list(by_split["train"].header or HEADERS[name, "train.tsv"])
    assert tuple(header.index(column) + 1 for column in by_split["train"].text_columns) == text
    assert header.index(by_split["train"].label_column) + 1 == label
    header = HEADERS[name, by_split["test"].file]
    assert tuple(header.index(column) + 1 for column in by_split["test"].text_columns) == test_text


def test_mnli_keeps_both_dev_sets_apart():
    files = {split.name: split.file for split in GLUE_TASKS["MNLI"].splits}
    assert files == {
        "train": "train.tsv",
        "valid": "dev_matched.tsv",
        "valid1": "dev_mismatched.tsv",
        "test": "test_matched.tsv",
        "test1": "test_mismatched.tsv",
    }
    label = HEADERS["MNLI", "dev_matched.tsv"].index(GLUE_TASKS["MNLI"].splits[1].label_column)
    assert label + 1 == 16  # the recipe's DEV_LABEL_COLUMN


@pytest.mark.parametrize(
    "name,labels,main_metric",
    [
        ("CoLA", ("0", "1"), "mcc"),
        ("RTE", ("entailment", "not_entailment"), "accuracy"),
        ("SST-2", ("0", "1"), "accuracy"),
        ("MNLI", ("entailment", "neutral", "contradiction"), "accuracy"),
        ("QNLI", ("entailment", "not_entailment"), "accuracy"),
        ("MRPC", ("0", "1"), "acc_and_f1"),
        ("STS-B", (), "pearson_and_spearman"),
        ("QQP", ("0", "1"), "acc_and_f1"),
        ("WNLI", ("0", "1"), "accuracy"),
    ],
)
def test_labels_and_metric(name, labels, main_metric):
    task = GLUE_TASKS[name]
    assert (task.labels, task.main_metric) == (labels, main_metric)
    assert task.main_metric in task.metrics
    assert set(task.metrics) <= set(METRICS)
    assert task.num_classes == (len(labels) or 1)
    assert task.regression == (name == "STS-B")
    assert task.num_inputs == (1 if name in ("CoLA", "SST-2") else 2)


def test_only_sts_b_has_a_range_and_only_qqp_drops_rows():
    assert {name: task.label_range for name, task in GLUE_TASKS.items() if task.label_range} == {"STS-B": (0.0, 5.0)}
    assert [name for name, task in GLUE_TASKS.items() if task.skip_malformed] == ["QQP"]


@pytest.mark.parametrize(
    "spelling,name",
    [
        ("sst2", "SST-2"),
        ("SST-2", "SST-2"),
        ("sst_2", "SST-2"),
        ("stsb", "STS-B"),
        ("STS-B", "STS-B"),
        ("cola", "CoLA"),
    ],
)
def test_spellings(spelling, name):
    assert get_task(spelling) is GLUE_TASKS[name]


def test_unknown_task_names_the_valid_ones():
    with pytest.raises(UsageError, match=r"no such task: 'SNLI'; use one of CoLA, RTE, .*WNLI"):
        get_task("SNLI")


def test_custom_task():
    task = custom_task(["title", "body"], "topic", ["b", "a"])
    assert [(split.file, split.name) for split in task.splits] == [
        ("train.tsv", "train"),
        ("dev.tsv", "valid"),
        ("test.tsv", "test"),
    ]
    assert task.splits[0].text_columns == ("title", "body")
    assert (task.labels, task.num_inputs, task.main_metric) == (("b", "a"), 2, "accuracy")
    assert custom_task(["text"], "score", regression=True).main_metric == "pearson_and_spearman"


@pytest.mark.parametrize("columns", [[], ["a", "b", "c"], ["a", "a"], ["label"]])
def test_custom_task_refuses_columns(columns):
    with pytest.raises(UsageError, match="one or two text columns"):
        custom_task(columns, "label")


def test_custom_task_refuses_labels_of_a_regression():
    with pytest.raises(UsageError, match="labels given for a regression: a, b"):
        custom_task(["text"], "label", ["a", "b"], regression=True)


@pytest.mark.parametrize(
    "name,split,rows,first_label", [("RTE", 0, 2490, "not_entailment"), ("CoLA", 1, 1043, "1"), ("SST-2", 1, 872, "0")]
)
def test_real_files(shared, name, split, rows, first_label):
    file = GLUE_TASKS[name].splits[split]
    path = shared / "data" / "glue" / name / file.file
    table = read_tsv(path, [*file.text_columns, file.label_column], file.header)
    assert len(table) == rows
    assert table.columns[file.label_column][0] == first_label
    assert set(table.columns[file.label_column]) == set(GLUE_TASKS[name].labels)
    assert all(text for column in file.text_columns for text in table.columns[column])
