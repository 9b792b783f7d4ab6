import numpy as np
import pytest
from sklearn.utils.class_weight import compute_class_weight

from sot_base.class_weights import class_weights, parse_class_weights
from sot_base.errors import UsageError

LABELS = ("bad", "good", "yes, really")


def test_balanced_is_scikit_learns():
    targets = np.repeat([0, 1, 2], [3, 10, 7])
    expected = compute_class_weight("balanced", classes=np.arange(3), y=targets)
    np.testing.assert_allclose(class_weights("balanced", LABELS, [3, 10, 7], 20), expected, rtol=1e-12)


def test_balanced_with_several_labels_a_row_weighs_both_sides_alike():
    counts = np.array([3, 10, 7])
    weights = class_weights("balanced", LABELS, counts, 20, multi_label=True)
    np.testing.assert_allclose(weights * counts, 20 - counts)


@pytest.mark.parametrize(
    "text, weights",
    [("bad=4", [4, 1, 1]), ('GOOD=.5,"yes, really"=3e1', [1, 0.5, 30]), ('"yes, really=2", bad = 4', [4, 1, 2])],
)
def test_by_name(text, weights):
    assert class_weights(text, LABELS, [1, 1, 1], 3).tolist() == weights


@pytest.mark.parametrize(
    "text, message",
    [
        ("bad", "'bad' is not a class weight: --class-weights bad; write balanced, or NAME=WEIGHT"),
        ("balance", "'balance' is not a class weight"),
        ("bad=0", "'bad=0' is not a class weight"),
        ("bad=-1", "'bad=-1' is not a class weight"),
        ("bad=inf", "'bad=inf' is not a class weight"),
        ("bad=nan", "'bad=nan' is not a class weight"),
        ("bad=heavy", "'bad=heavy' is not a class weight"),
        ("=3", "'=3' is not a class weight"),
        ("", "'' is not a class weight"),
        ("bad=1,bad=2", "'bad' is repeated: --class-weights bad=1,bad=2"),
        ('"bad=1', "a quotation mark is not closed"),
    ],
)
def test_a_wrong_form(text, message):
    with pytest.raises(UsageError, match=message):
        parse_class_weights(text)


def test_no_such_class():
    with pytest.raises(
        UsageError, match="no such class: --class_weights 'ugly'; the classes are bad, good, yes, really"
    ):
        class_weights("ugly=2", LABELS, [1, 1, 1], 3, option="--class_weights")


@pytest.mark.parametrize(
    "counts, multi_label, message",
    [
        ([2, 0, 1], False, "no training row has the label 'good': --class-weights balanced; give weights by name"),
        ([2, 0, 1], True, "no training row has the label 'good'"),
        ([3, 1, 1], True, "all training rows have the label 'bad'"),
    ],
)
def test_nothing_to_balance(counts, multi_label, message):
    with pytest.raises(UsageError, match=message):
        class_weights("balanced", LABELS, counts, 3, multi_label)
