"""Optimizers that do not import torch's compiler: that costs a training as much time as importing torch itself."""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from typing import Any

from torch.optim import Optimizer

__all__ = ["create_optimizers_without_compiler"]

METHODS = ("add_param_group", "zero_grad", "state_dict", "load_state_dict")


def create_optimizers_without_compiler() -> None:
    """Import ``torch._dynamo`` for an optimizer's methods only if something else has done so.

    torch marks these methods as not to be compiled, and on the first call imports the compiler in order to tell it so.
    While the compiler is not imported it compiles nothing, and calling the method itself is the same.
    """
    for name in METHODS:
        stock = getattr(Optimizer, name)
        if hasattr(stock, "__wrapped__") and not hasattr(stock, "needs_no_compiler"):
            setattr(Optimizer, name, _without_compiler(stock, stock.__wrapped__))


def _without_compiler(marked: Callable[..., Any], plain: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(plain)
    def method(*args: Any, **kwargs: Any) -> Any:
        return (marked if "torch._dynamo" in sys.modules else plain)(*args, **kwargs)

    method.needs_no_compiler = True  # type: ignore[attr-defined]
    return method
