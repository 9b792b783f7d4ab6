import logging

import numpy as np
import pytest

from sot_base.errors import UsageError
from sot_text.labels import check_labels, class_indices, labels_of, regression_targets
from sot_text.tsv import TsvTable


def table(*cells: str) -> TsvTable:
    return TsvTable("dev.tsv", {"label": list(cells)}, range(2, 2 + len(cells)), [])


@pytest.mark.parametrize("cells", [("b", "a", "a", "a"), ("a", "b", "b", "b"), (" b", "a ")])
def test_order_of_labels_does_not_depend_on_frequency_or_place(cells):
    assert labels_of(table(*cells), "label") == ("a", "b")


def test_whole_numbers_sort_as_numbers():
    assert labels_of(table("10", "2", "-1", "0"), "label") == ("-1", "0", "2", "10")
    assert labels_of(table("10", "2", "x"), "label") == ("10", "2", "x")


def test_class_indices_by_name():
    labels = ("entailment", "not_entailment")
    cells = ("not_entailment", "Entailment", "NOT_ENTAILMENT", " entailment ")
    np.testing.assert_array_equal(class_indices(table(*cells), "label", labels), [1, 0, 1, 0])
    np.testing.assert_array_equal(class_indices(table(*cells), "label", labels[::-1]), [0, 1, 0, 1])


def test_case_counts_where_it_tells_labels_apart(caplog):
    labels = check_labels(["Yes", "no", "yes"], "train.tsv")
    assert "differ in upper and lower case only" in caplog.text
    np.testing.assert_array_equal(class_indices(table("yes", "Yes", "NO"), "label", labels), [2, 0, 1])
    with pytest.raises(UsageError, match=r"unknown label 'YES': dev.tsv line 2"):
        class_indices(table("YES"), "label", labels)


def test_unambiguous_labels_are_no_warning(caplog):
    with caplog.at_level(logging.WARNING):
        check_labels(["yes", "no"], "train.tsv")
    assert not caplog.records


def test_absent_label_names_line():
    with pytest.raises(UsageError, match=r"no label: dev.tsv line 4, column 'label'; give each sample a label"):
        labels_of(table("a", "b", " ", "b"), "label")


@pytest.mark.parametrize("value", ["maybe", "", "-", "entail"])
def test_unknown_label_names_line_and_value(value):
    with pytest.raises(UsageError) as error:
        class_indices(table("yes", "no", value), "label", ("no", "yes"))
    assert str(error.value) == f"unknown label {value!r}: dev.tsv line 4, column 'label'; use one of no, yes"


@pytest.mark.parametrize(
    "labels,message",
    [
        (["one"], "fewer than two labels"),
        (["a", ""], "'' is no label"),
        (["a", " b"], "' b' is no label"),
        (["a", "b\rc"], "is no label"),
        (["a", "madeupword0001"], "fairseq keeps 'madeupword0001' for itself"),
        (["a", "<unk>"], "fairseq keeps '<unk>' for itself"),
        (["<mask>", "b"], "fairseq keeps '<mask>' for itself"),
        (["a", "b", "a"], "'a' is repeated"),
    ],
)
def test_impossible_labels(labels, message):
    with pytest.raises(UsageError, match=message):
        check_labels(labels, "--labels")


def test_regression_targets_are_kept_as_they_are():
    targets = regression_targets(table("0", "5.000", "2.4", " 3.25 ", "1e-1"), "label", (0.0, 5.0))
    assert targets.tolist() == [0.0, 5.0, 2.4, 3.25, 0.1]
    assert regression_targets(table("-7", "1e9"), "label").tolist() == [-7.0, 1e9]


@pytest.mark.parametrize("value", ["3,5", "", "high", "nan", "inf", "1_0", "0x1"])
def test_not_a_number_names_line_and_value(value):
    with pytest.raises(UsageError, match=r"is no number: dev.tsv line 3, column 'label'; write it like 3.5") as error:
        regression_targets(table("1", value), "label", (0.0, 5.0))
    assert repr(value) in str(error.value)


@pytest.mark.parametrize("value", ["5.3", "-0.1"])
def test_number_outside_the_range(value):
    with pytest.raises(UsageError, match=f"{value} is not between 0 and 5: dev.tsv line 2"):
        regression_targets(table(value), "label", (0.0, 5.0))
