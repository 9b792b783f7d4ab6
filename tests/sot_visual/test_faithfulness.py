"""Curves and their areas on a model whose answer is known, and the table of the checks."""

import math

import numpy as np
import pytest
import torch

from sot_base.errors import UsageError
from sot_visual.check import check_methods, check_table, draw_checks, usable_methods
from sot_visual.faithfulness import deletion_insertion, mean_and_error, rank_correlation, shuffle_weights
from tests.sot_visual.models import TinyEncoder

WORTH = torch.tensor([0.5, 0.2, 0.1, 0.1, 0.05, 0.05, 0.0, 0.0, 0.0, 0.0])


def evaluate(kept):
    return kept.float() @ WORTH


def test_the_true_order_has_the_smallest_deletion_and_the_largest_insertion_area():
    right = deletion_insertion(WORTH, evaluate)
    np.testing.assert_allclose(right.deletion, 1.0 - np.cumsum([0.0, *WORTH.tolist()]), atol=1e-6)
    np.testing.assert_allclose(right.insertion, np.cumsum([0.0, *WORTH.tolist()]), atol=1e-6)
    for seed in range(5):
        other = deletion_insertion(torch.rand(10, generator=torch.Generator().manual_seed(seed)), evaluate)
        assert right.deletion_area < other.deletion_area
        assert right.insertion_area > other.insertion_area


@pytest.mark.parametrize("count", [1, 3, 25])
def test_any_number_of_parts_goes_from_everything_to_nothing(count):
    curves = deletion_insertion(torch.zeros(count), lambda kept: kept.float().mean(dim=1))
    assert curves.deletion[0] == curves.insertion[-1] == 1.0
    assert curves.deletion[-1] == curves.insertion[0] == 0.0


def test_mean_and_standard_error():
    summary = mean_and_error([1.0, 2.0, 3.0, 4.0])
    assert (summary.mean, round(summary.error, 6)) == (2.5, round(math.sqrt(5 / 3 / 4), 6))
    assert math.isnan(mean_and_error([1.0]).error)


def test_rank_correlation_of_constants_is_zero():
    assert rank_correlation(torch.arange(4.0), torch.tensor([1.0, 2.0, 30.0, 31.0])) == pytest.approx(1.0)
    assert rank_correlation(torch.arange(4.0), torch.ones(4)) == 0.0


def test_shuffled_weights_are_the_same_numbers_elsewhere():
    model = TinyEncoder()
    shuffled = shuffle_weights(model)
    for before, after in zip(model.parameters(), shuffled.parameters(), strict=True):
        torch.testing.assert_close(before.flatten().sort().values, after.flatten().sort().values)
    assert not torch.equal(model.embed.weight, shuffled.embed.weight)
    torch.testing.assert_close(shuffled.embed.weight, shuffle_weights(model).embed.weight)


def test_checks_tell_a_good_method_from_random_scores():
    def scores(index, method, is_random):
        return WORTH + 1e-3 * index if method == "good" and not is_random else torch.rand(10)

    checks = {check.method: check for check in check_methods(["good"], 30, scores, lambda index, kept: evaluate(kept))}
    assert list(checks) == ["good", "random"]
    assert checks["good"].deletion_gain.mean > 2 * checks["good"].deletion_gain.error
    assert checks["good"].insertion_gain.mean > 2 * checks["good"].insertion_gain.error
    assert abs(checks["good"].randomized.mean) < 0.3
    table = check_table(list(checks.values())).splitlines()
    assert [line.split("|")[1].strip() for line in table] == ["method", "--------", "good", "random"]
    assert len(draw_checks(list(checks.values()), "title").axes) == 2


def test_nothing_to_check_is_refused():
    with pytest.raises(UsageError, match="nothing to check"):
        check_methods(["good"], 0, lambda *args: torch.ones(1), lambda *args: torch.ones(1))


def test_methods_that_fail_are_left_out_unless_they_were_asked_for():
    def attempt(name):
        if name == "relevance":
            raise UsageError("no attention")

    found, reasons = usable_methods(attempt, None)
    assert "relevance" not in found
    assert reasons == ["relevance: no attention"]
    with pytest.raises(UsageError, match="no attention"):
        usable_methods(attempt, ["contributions", "relevance"])
