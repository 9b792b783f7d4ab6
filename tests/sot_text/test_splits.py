"""Test files whose labels are placeholders count as files without labels."""

import pytest

from sot_base.errors import UsageError
from sot_text.glue import custom_task, get_task
from sot_text.labels import class_indices
from sot_text.splits import read_split_file

OWN = custom_task(["sentence"], "label", ["good", "bad"])
NUMBERS = custom_task(["sentence"], "label", regression=True)
SETS = custom_task(["sentence"], "label", ["a", "b"], multi_label=True)


def read(folder, task, labels, file="test.tsv", column="label"):
    split = next(split for split in task.splits if split.file == file)
    header = [*split.text_columns, column]
    rows = [[*("text" for _ in split.text_columns), label] for label in labels]
    (folder / file).write_text("\n".join("\t".join(row) for row in [header, *rows]) + "\n")
    return read_split_file(task, split, folder)


@pytest.mark.parametrize(
    "task, label, column",
    [
        (OWN, "-1", "label"),
        (OWN, "", "label"),
        (OWN, " ", "label"),
        (OWN, "?", "label"),
        (SETS, "", "label"),
        (SETS, "-1", "label"),
        (NUMBERS, "", "label"),
        (NUMBERS, "nan", "label"),
        (get_task("SST-2"), "-1", "label"),
        (get_task("SST-2"), "", "label"),
        (get_task("STS-B"), "-1", "score"),
        (get_task("STS-B"), "", "score"),
        (get_task("MRPC"), "-1", "Quality"),
    ],
)
@pytest.mark.parametrize("rows", [1, 4])
def test_a_placeholder_is_no_label(tmp_path, caplog, task, label, column, rows):
    table = read(tmp_path, task, [label] * rows, column=column)
    assert (list(table.columns), len(table)) == (list(task.splits[-1].text_columns), rows)
    (record,) = caplog.records
    assert str(tmp_path / "test.tsv") in record.getMessage()
    assert record.getMessage().endswith("read as a file without labels")


@pytest.mark.parametrize(
    "task, labels", [(OWN, ["good"] * 3), (OWN, ["Bad", "Bad"]), (NUMBERS, ["-1", "-1"]), (SETS, ["a,b", "a,b"])]
)
def test_labels_that_are_all_the_same_stay(tmp_path, caplog, task, labels):
    assert read(tmp_path, task, labels).columns["label"] == labels
    assert not caplog.records


@pytest.mark.parametrize("labels", [["good", "-1"], ["", "-1"], ["good", ""]])
def test_mixed_labels_are_still_checked(tmp_path, labels):
    table = read(tmp_path, OWN, labels)
    with pytest.raises(UsageError, match="unknown label"):
        class_indices(table, "label", OWN.labels)


@pytest.mark.parametrize("file", ["train.tsv", "dev.tsv"])
def test_other_files_need_labels(tmp_path, file):
    assert read(tmp_path, OWN, ["-1", "-1"], file).columns["label"] == ["-1", "-1"]
