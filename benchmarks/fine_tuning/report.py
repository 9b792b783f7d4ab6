"""Tables and a picture of the measurement."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path

from benchmarks.fine_tuning.arms import ARMS, PRIMARY, SECONDARY
from benchmarks.fine_tuning.encoder_states import PROBES
from benchmarks.fine_tuning.results_file import Results, Step
from benchmarks.statistics import PairedT, format_interval, format_p, holm, paired_t
from sot_base.errors import UsageError
from sot_base.markdown import markdown_table
from sot_visual.figures import new_figure, save_figure

__all__ = ["answer", "arms_table", "compare_arms", "draw_differences", "states_tables", "variants_table"]

MARGIN = 3.0  # points of the metric within which two arms count as equal
SIGNIFICANT = 0.05


def compare_arms(results: Results, pairs: Mapping[str, str]) -> dict[str, tuple[PairedT, float, int]]:
    """For each arm that was measured with the one it is compared with: the test, its corrected p value, the seeds."""
    shared = {arm: results.seeds(arm, other) for arm, other in pairs.items()}
    tests = {
        arm: paired_t(_values(results, arm, seeds), _values(results, pairs[arm], seeds))
        for arm, seeds in shared.items()
        if seeds
    }
    corrected = holm([test.p for test in tests.values()])
    return {arm: (test, p, len(shared[arm])) for (arm, test), p in zip(tests.items(), corrected, strict=True)}


def answer(test: PairedT, p: float) -> str:
    """What a comparison says, by the rule of the plan."""
    if p < SIGNIFICANT:
        return "yes" if test.difference > 0 else "harm"
    return "no" if test.low > -MARGIN and test.high < MARGIN else "open"


def arms_table(results: Results) -> str:
    """Every arm, and its difference from the class token alone."""
    compared = compare_arms(results, PRIMARY)
    header = (
        "arm",
        f"{results.metric}, %",
        "std",
        "AUC, %",
        "seeds",
        "compared with",
        "difference [95 %]",
        "p",
        "answer",
    )
    rows: list[Sequence[str]] = [header]
    for arm in (name for name in ARMS if name in results.arms):
        seeds = results.seeds(arm)
        values = _values(results, arm, seeds)
        auc = statistics.fmean(results.arms[arm][seed].auc for seed in seeds)
        cells = [arm, f"{statistics.fmean(values):.2f}", _std(values), f"{auc:.2f}", str(len(seeds))]
        rows.append([*cells, *_compared(compared, arm, PRIMARY), *_answer_of(compared, arm)])
    return markdown_table(rows)


def variants_table(results: Results) -> str:
    """The variants against the plain ways of training; empty if none was measured."""
    compared = compare_arms(results, SECONDARY)
    header = ("arm", "compared with", "difference [95 %]", "p", "seeds")
    rows = [(arm, *_compared(compared, arm, SECONDARY), str(compared[arm][2])) for arm in compared]
    return markdown_table([header, *rows]) if rows else ""


def states_tables(results: Results) -> str:
    """Rank and probes of the encoders that were followed, and how the gap changes; empty if none was."""
    followed = {arm: _followed(results, arm) for arm in ARMS if _followed(results, arm)}
    if not followed:
        return ""
    header = ("tuned with", "epochs", "effective rank", "within rows", "first direction, %", "its AUC, %")
    rows: list[Sequence[str]] = [(*header, *PROBES, "gap [95 %]", "seeds")]
    changes: list[Sequence[str]] = [("tuned with", "what", "points [95 %]")]
    for arm, runs in followed.items():
        for moments in zip(*runs, strict=True):
            rows.append((arm, *_moment(moments)))
        changes += [(arm, *change) for change in _changes(runs)]
    return f"{markdown_table(rows)}\n\n{markdown_table(changes)}"


def draw_differences(results: Results, path: Path) -> None:
    """Draw the differences of the primary comparisons with their intervals.

    Raises:
        UsageError: if nothing can be compared, matplotlib is not installed, or it does not know the format.
    """
    compared = compare_arms(results, PRIMARY)
    if not compared:
        raise UsageError(f"nothing to draw: --picture {path}; measure an arm and the one it is compared with")
    figure = new_figure(5.0, 0.8 + 0.25 * len(compared))
    axes = figure.subplots()
    for place, (arm, (test, _, _)) in enumerate(compared.items()):
        axes.plot([test.low, test.high], [place, place], color="C0", linewidth=1.5)
        axes.plot(test.difference, place, "o", color="C0", markersize=4)
        axes.annotate(f"{arm} - {PRIMARY[arm]}", (0, place), (-4, 0), xycoords=("axes fraction", "data"),
                      textcoords="offset points", ha="right", va="center", fontsize=7)  # fmt: skip
    axes.axvline(0, color="gray", linewidth=0.8)
    axes.axvspan(-MARGIN, MARGIN, color="gray", alpha=0.12, linewidth=0)
    axes.set(
        yticks=[], xlabel=f"difference of {results.metric}, points, 95 % interval", ylim=(len(compared) - 0.5, -0.5)
    )
    save_figure(figure, path)


def _values(results: Results, arm: str, seeds: Sequence[str]) -> list[float]:
    return [results.arms[arm][seed].value for seed in seeds]


def _std(values: Sequence[float]) -> str:
    return f"{statistics.stdev(values):.2f}" if len(values) > 1 else "-"


def _compared(
    compared: Mapping[str, tuple[PairedT, float, int]], arm: str, pairs: Mapping[str, str]
) -> tuple[str, str, str]:
    if arm not in compared:
        return "-", "-", "-"
    test, p, _ = compared[arm]
    return pairs[arm], format_interval(*test[:3]), format_p(p)


def _answer_of(compared: Mapping[str, tuple[PairedT, float, int]], arm: str) -> tuple[str]:
    return (answer(*compared[arm][:2]) if arm in compared else "-",)


def _followed(results: Results, arm: str) -> list[list[Step]]:
    runs = results.arms.get(arm, {})
    return [runs[seed].steps for seed in sorted(runs, key=int) if runs[seed].steps]


def _gap(step: Step) -> float:
    return step.probes["mgcrp-words"] - step.probes["cls"]


def _moment(steps: Sequence[Step]) -> list[str]:
    """The cells of a row: one moment of all seeds."""

    def cell(values: Sequence[float | None]) -> str:
        known = [value for value in values if value is not None]
        return f"{statistics.fmean(known):.2f} ({_std(known)})" if known else "-"

    columns = (
        [step.effective_rank for step in steps],
        [step.rank_within for step in steps],
        [100 * step.first_share for step in steps],
        [step.direction_auc for step in steps],
    )
    probes = ([step.probes[name] for step in steps] for name in PROBES)
    gap = paired_t([_gap(step) for step in steps], [0.0] * len(steps))
    cells = [cell(column) for column in (*columns, *probes)]
    return [str(steps[0].epoch), *cells, format_interval(*gap[:3]), str(len(steps))]


def _changes(runs: Sequence[Sequence[Step]]) -> list[tuple[str, str]]:
    """What the plan's outcomes are about, from before tuning to the last epoch."""
    first, last = [run[0] for run in runs], [run[-1] for run in runs]
    words, cls = "mgcrp-words", "cls"
    pairs = {
        "gap after tuning - half of the gap before": (
            [_gap(step) for step in last],
            [_gap(step) / 2 for step in first],
        ),
        "cls after tuning - mgcrp-words before": (
            [step.probes[cls] for step in last],
            [step.probes[words] for step in first],
        ),
        "mgcrp-words after tuning - before": (
            [step.probes[words] for step in last],
            [step.probes[words] for step in first],
        ),
        "effective rank after tuning - before": (
            [step.effective_rank for step in last],
            [step.effective_rank for step in first],
        ),
    }
    return [(what, format_interval(*paired_t(*pair)[:3])) for what, pair in pairs.items()]
