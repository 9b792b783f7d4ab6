"""The state of an optimizer or a schedule from a file: checked before it is loaded, since torch trusts it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from torch import Tensor

__all__ = ["check_like", "check_optimizer_state"]

AVERAGES = {  # of torch's and timm's optimizers, each of its parameter's shape
    *("exp_avg", "exp_avg_sq", "max_exp_avg_sq", "exp_avg_diff", "exp_inf", "momentum_buffer", "slow_buffer"),
    *("square_avg", "grad_avg", "acc_delta", "sum", "prev", "step_size", "ax", "exp_avg_var", "max_exp_avg_var"),
    *("exp_hessian_diag_sq", "neg_pre_grad", "lookahead_slow_buff", "last_grad"),
}


def check_optimizer_state(groups: Sequence[Mapping[str, Any]], state: Any) -> None:
    """Make sure that a state has an optimizer's groups, their hyper-parameters each of its type, and tensors that fit.

    Args:
        groups: The optimizer's own ``param_groups``.
        state: What its ``load_state_dict`` would be given.

    Raises:
        ValueError: naming what does not fit.
    """
    if not isinstance(state, Mapping) or not {"state", "param_groups"} <= state.keys():
        raise ValueError("no state of an optimizer")
    saved_groups, saved_state = state["param_groups"], state["state"]
    if not isinstance(saved_groups, list) or len(saved_groups) != len(groups):
        raise ValueError(f"not {len(groups)} groups of parameters")
    numbers: list[Any] = []
    for number, (own, saved) in enumerate(zip(groups, saved_groups, strict=True)):
        if not isinstance(saved, Mapping) or not isinstance(saved.get("params"), list):
            raise ValueError(f"group {number} has no parameters")
        if len(saved["params"]) != len(own["params"]):
            raise ValueError(f"group {number} has {len(saved['params'])} parameters, not {len(own['params'])}")
        for name in own.keys() & saved.keys() - {"params"}:
            check_like(own[name], saved[name], f"group {number}, {name}")
        numbers += saved["params"]
    parameters = [parameter for group in groups for parameter in group["params"]]
    if not isinstance(saved_state, Mapping):
        raise ValueError("no state of the parameters")
    for number, entries in saved_state.items():
        if number not in numbers or not isinstance(entries, Mapping):
            raise ValueError(f"a state of no parameter, {str(number)[:40]}")
        _check_entries(parameters[numbers.index(number)], entries, f"parameter {number}")


def _check_entries(parameter: Tensor, entries: Mapping[Any, Any], where: str) -> None:
    """An average of another shape than its gradient's would be read and written beyond its end."""
    for name, value in entries.items():
        if not _is_plain(value):
            raise ValueError(f"{where}, {str(name)[:40]}: {str(value)[:40]}")
        if name == "step" and not _is_number(value):
            raise ValueError(f"{where}, step: no number")
        if name in AVERAGES and not (
            isinstance(value, Tensor) and value.is_floating_point() and value.shape == parameter.shape
        ):
            shape = tuple(value.shape) if isinstance(value, Tensor) else type(value).__name__
            raise ValueError(f"{where}, {name}: {shape}, not {tuple(parameter.shape)}")


def _is_plain(value: Any) -> bool:
    if isinstance(value, (list, tuple)):
        return all(_is_plain(item) for item in value)
    return isinstance(value, (Tensor, int, float, type(None)))


def check_like(own: Any, saved: Any, where: str) -> None:
    """Make sure that a saved plain value is of its own value's kind: numbers, texts, lists and dictionaries of them.

    Raises:
        ValueError: naming it.
    """
    if _is_number(own) and _is_number(saved):
        return
    if isinstance(own, (list, tuple)) and isinstance(saved, (list, tuple)):
        if len(own) != len(saved):
            raise ValueError(f"{where} has {len(saved)} entries, not {len(own)}")
        for number, (mine, theirs) in enumerate(zip(own, saved, strict=True)):
            check_like(mine, theirs, f"{where}[{number}]")
        return
    if isinstance(own, Mapping) and isinstance(saved, Mapping):
        for key in saved:
            if key not in own:
                raise ValueError(f"{where}: an unknown entry, {str(key)[:40]}")
            check_like(own[key], saved[key], f"{where}, {key}" if where else str(key))
        return
    if own is not None and type(own) is not type(saved):
        raise ValueError(f"{where} is {str(saved)[:60]!r}")


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) or (isinstance(value, Tensor) and value.numel() == 1)
