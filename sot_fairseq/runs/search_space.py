"""What a sweep searches: options of ``fairseq-train`` and the values each may take."""

from __future__ import annotations

import itertools
import math
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import optuna

from sot_base.errors import UsageError

__all__ = ["Parameter", "command_words", "grid", "parse_parameter", "setting_of"]

Value = str | int | float
FORM = "write NAME=A,B,C or NAME=LOW..HIGH, with :log or :int after HIGH if need be"


@dataclass(frozen=True)
class Parameter:
    """One option and its values.

    Attributes:
        name: The option without its dashes, for instance ``head-lr-scale``.
        choices: The values it may take; empty for a range.
        low: Lower end of a range.
        high: Upper end of a range.
        kind: ``""`` for an even scale, ``log`` for a logarithmic one, ``int`` for whole numbers.
    """

    name: str
    choices: tuple[str, ...] = ()
    low: float = 0.0
    high: float = 0.0
    kind: str = ""

    def suggest(self, trial: optuna.Trial) -> Value:
        """Let a trial choose a value."""
        if self.choices:
            return trial.suggest_categorical(self.name, self.choices)
        if self.kind == "int":
            return trial.suggest_int(self.name, int(self.low), int(self.high))
        return trial.suggest_float(self.name, self.low, self.high, log=self.kind == "log")


def parse_parameter(text: str) -> Parameter:
    """Read ``lr=1e-5..1e-3:log``, ``mgcrp-q=8..48:int`` or ``head-dropout=0,0.5``.

    Raises:
        UsageError: If the text has another form.
    """
    name, equals, values = text.partition("=")
    name = name.strip().removeprefix("--").replace("_", "-")
    if not (name and equals and values.strip()):
        raise UsageError(f"not a parameter: --param {text}; {FORM}")
    low_end, dots, high_end = values.strip().partition("..")
    if not dots:
        choices = tuple(value.strip() for value in values.split(","))
        if not all(choices) or len(set(choices)) < len(choices):
            raise UsageError(f"an empty or a repeated value: --param {text}; {FORM}")
        return Parameter(name, choices)
    high_end, _, kind = high_end.partition(":")
    try:
        low, high = float(low_end), float(high_end)
    except ValueError:
        raise UsageError(f"not two numbers: --param {text}; {FORM}") from None
    if kind not in ("", "log", "int"):
        raise UsageError(f"unknown scale {kind!r}: --param {text}; {FORM}")
    if not (math.isfinite(low) and math.isfinite(high) and low < high) or (kind == "log" and low <= 0):
        raise UsageError(f"not a range: --param {text}; LOW must be below HIGH, and positive for :log")
    if kind == "int" and not (low.is_integer() and high.is_integer()):
        raise UsageError(f"not whole numbers: --param {text}; leave out :int or correct them")
    return Parameter(name, (), low, high, kind)


def grid(parameters: Sequence[Parameter], seed: int) -> list[dict[str, str]]:
    """Every combination of listed values, in an order drawn from the seed.

    To be queued: optuna's grid sampler does not know trials that are queued again after a kill.
    """
    combinations = itertools.product(*(parameter.choices for parameter in parameters))
    names = [parameter.name for parameter in parameters]
    settings = [dict(zip(names, values, strict=True)) for values in combinations]
    random.Random(seed).shuffle(settings)
    return settings


def setting_of(trial: optuna.trial.FrozenTrial) -> dict[str, Value]:
    """The values that a trial has taken, or those that it is to take when it comes out of the queue."""
    values: dict[str, Value] = trial.params or dict(trial.system_attrs.get("fixed_params", {}))
    return values


def command_words(values: Mapping[str, Value]) -> list[str]:
    """Return a trial's options as command-line arguments; ``true`` is a flag alone, ``false`` none at all."""
    words: list[str] = []
    for name, value in values.items():
        if value == "true":
            words.append(f"--{name}")
        elif value != "false":
            words += [f"--{name}", f"{value:.6g}" if isinstance(value, float) else str(value)]
    return words
