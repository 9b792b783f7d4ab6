"""Train every head on a data set with every seed that its file lacks."""

from __future__ import annotations

import argparse
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from benchmarks.allocations import peak_of_cpu_allocations
from benchmarks.heads.datasets import draw_rows
from benchmarks.heads.results_file import Results, Run, read_results, results_path
from sot_base.errors import UsageError
from sot_probe.command import ProbeSide, open_experiment, read_states
from sot_probe.experiment import Choice, Experiment
from sot_probe.grid import ProbeSettings, fits_pair, grid, training_words
from sot_probe.layer_head import LayerHead

__all__ = ["measure"]

MIB = 2**20
LEAST_UPDATES = 200  # with few labels the epochs are increased to so many
Settings = dict[str, ProbeSettings]  # by their command-line arguments
Tried = dict[str, float | None]  # settings -> metric on the held-out rows


def measure(name: str, args: argparse.Namespace, side: ProbeSide, labels: int | None = None) -> Results:
    """Complete the file of a data set.

    Of all combinations of the given options and training settings, each head gets the one with the best metric on
    held-out training rows, the first one in a tie; it is trained on all training rows with each seed, and tested once.

    Args:
        name: The data set.
        args: The command line.
        side: The data set with its encoder.
        labels: Use so many training rows, drawn for each seed anew, settings being chosen for each draw; None: use all,
            settings being chosen once, with the first seed.

    Raises:
        UsageError: if the file is of other settings, there are too few rows, or no training of a head succeeds.
    """
    path = results_path(args.output_dir, name, labels)
    store = read_states(args, side)
    experiment = open_experiment(args, side, store)
    train, (test,) = experiment.train, experiment.dev.values()
    if labels is not None and labels >= len(train.targets):
        raise UsageError(f"{name} has {len(train.targets)} training rows: --labels {labels}; give less")
    protocol = {
        "states": store.folder.name,
        "train_rows": len(train.targets),
        "test_rows": len(test.targets),
        "labels": labels,
        "held_out": args.held_out,
    }
    heads = _settings_of_heads(args, side, labels)
    results = Results(name, side.main_metric, protocol, test.targets.tolist(), {})
    if path.exists():
        results = _continued(path, results, heads)
    for seed in args.seeds:
        missing = {head: own for head, own in heads.items() if str(seed) not in results.heads.get(head, {})}
        if not missing:
            continue
        drawn = experiment if labels is None else _with_labels(experiment, labels, seed)
        tried = {} if labels is not None else _recorded(results, missing)
        tried |= _try_settings(drawn, {head: own for head, own in missing.items() if head not in tried}, seed)
        for head, run in _train(drawn, missing, tried, seed):
            results.heads.setdefault(head, {})[str(seed)] = run
            print(f"{path.stem}, {head}, seed {seed}: {run.value:.2f}", flush=True)  # noqa: T201
        results.write(path)
    return results


def _settings_of_heads(args: argparse.Namespace, side: ProbeSide, labels: int | None) -> dict[str, Settings]:
    """For each head its settings by their command-line arguments."""
    found: dict[str, Settings] = {}
    for setting in _grid(args, side.layers):
        side.create_head(setting.head_settings, {})  # reports mistakes before anything is trained
        (training,) = setting.training
        if labels is not None:
            steps = math.ceil(labels / training.batch_size)
            training = replace(training, epochs=max(training.epochs, math.ceil(LEAST_UPDATES / steps)))
        words = [*setting.words[2:], *_layer_words(setting, side.layers), *training_words(training)]
        found.setdefault(setting.head, {})[" ".join(words)] = replace(setting, training=(training,))
    return found


def _grid(args: argparse.Namespace, layers: Sequence[int]) -> Iterator[ProbeSettings]:
    """All settings of the heads, on each layer and on the pairs of layers that they can read."""
    yield from grid(args, layers, choose=False)
    for pair in args.pairs:
        heads = [head for head in args.heads if fits_pair(head, pair)]
        own = argparse.Namespace(**{**vars(args), "heads": heads, "layer_pair": pair})
        yield from grid(own, layers, choose=False)


def _layer_words(setting: ProbeSettings, layers: Sequence[int]) -> list[str]:
    """The layers that a head reads as command-line arguments; none where there is one layer alone."""
    if setting.pair:
        return ["--layer-pair", setting.pair]
    return ["--layers", str(layers[setting.layer])] if len(layers) > 1 else []


def _continued(path: Path, expected: Results, heads: Mapping[str, Settings]) -> Results:
    """Read the file; it must have been written with the same settings."""
    results = read_results(path)
    remedy = "give the same options, or another --output-dir"
    for key, value in expected.protocol.items():
        if results.protocol.get(key) != value:
            raise UsageError(f"{key} was {results.protocol.get(key)}, now {value}: {path}; {remedy}")
    if results.targets != expected.targets:
        raise UsageError(f"the test rows were others: {path}; {remedy}")
    for head, settings in heads.items():
        for run in results.heads.get(head, {}).values():
            if set(run.tried) != set(settings):
                raise UsageError(f"{head} was trained with other settings ({'; '.join(run.tried)}): {path}; {remedy}")
    return results


def _with_labels(experiment: Experiment, labels: int, seed: int) -> Experiment:
    rows = draw_rows(experiment.train.targets.numpy(), labels, seed)
    return replace(experiment, train=experiment.train.subset(rows))


def _recorded(results: Results, heads: Mapping[str, object]) -> dict[str, Tried]:
    """What was tried for the heads that have a training."""
    return {head: next(iter(results.heads[head].values())).tried for head in heads if results.heads.get(head)}


def _try_settings(experiment: Experiment, heads: Mapping[str, Settings], seed: int) -> dict[str, Tried]:
    """Train with each setting on the training rows that are not held out; the metric on those that are."""
    if not heads:
        return {}
    choices = iter(experiment.choose([setting for own in heads.values() for setting in own.values()], seed))
    return {head: {words: next(choices).score for words in own} for head, own in heads.items()}


def _train(
    experiment: Experiment, heads: Mapping[str, Settings], tried: Mapping[str, Tried], seed: int
) -> Iterator[tuple[str, Run]]:
    """Train each head with the best of the settings that were tried, and test it."""
    chosen = {head: _best(head, tried[head]) for head in heads}
    settings = [own[chosen[head]] for head, own in heads.items()]
    choices = [Choice(setting.training[0]) for setting in settings]
    ((_, found),) = experiment.train_seeds(settings, choices, [seed])
    for head, setting, (outcome, metrics) in zip(heads, settings, found, strict=True):
        if outcome.failed:
            raise UsageError(f"{head}, seed {seed}: {outcome.failed}")
        ((split, values),) = metrics.items()
        yield (
            head,
            Run(
                settings=chosen[head],
                tried=tried[head],
                parameters=outcome.parameters,
                seconds=round(outcome.seconds, 3),
                mebibytes=_peak(experiment, outcome.head, setting.training[0].batch_size),
                value=values[experiment.main_metric],
                predictions=outcome.predictions[split].tolist(),
            ),
        )


def _best(head: str, tried: Tried) -> str:
    scores = {words: score for words, score in tried.items() if score is not None}
    if not scores:
        raise UsageError(f"no training of {head} has finite values: --lr; give a lower one")
    return max(scores, key=lambda words: scores[words])


def _peak(experiment: Experiment, head: LayerHead, batch_size: int) -> float:
    """Peak memory of a forward and a backward pass over the longest rows, gradients included, in MiB."""
    train = experiment.train
    rows = train.states.lengths.argsort(descending=True, stable=True)[:batch_size]
    (states, mask), targets = train.states.gather(rows), train.targets[rows]

    def step() -> None:
        experiment.objective.loss(head.train()(states, mask), targets).backward()

    head.zero_grad(set_to_none=True)
    return round(peak_of_cpu_allocations(step) / MIB, 2)
