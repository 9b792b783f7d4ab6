"""Head settings of the published BERT runs on GLUE, task by task."""

from __future__ import annotations

from typing import Any

__all__ = ["HEAD_RECIPES", "head_recipe"]

# rows, columns and dropout of the one head of MGCrP
HEAD_RECIPES: dict[str, tuple[int, int, float]] = {
    "MNLI": (112, 48, 0.7),
    "QNLI": (112, 48, 0.5),
    "RTE": (56, 32, 0.8),
    "CoLA": (96, 48, 0.5),
}


def head_recipe(task: str) -> dict[str, Any]:
    """Fields of `HeadConfig` for a task; empty, which means its defaults, for a task without a published run.

    Example:
        >>> head_recipe("RTE")
        {'num_heads': 1, 'q_dim': 56, 'k_dim': 32, 'drop_rate': 0.8}
    """
    if task not in HEAD_RECIPES:
        return {}
    q_dim, k_dim, drop_rate = HEAD_RECIPES[task]
    return {"num_heads": 1, "q_dim": q_dim, "k_dim": k_dim, "drop_rate": drop_rate}
