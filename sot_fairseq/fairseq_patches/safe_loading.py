"""Safe loading of fairseq checkpoints: the few classes they hold besides tensors are allowed by name.

``torch.load`` reads checkpoints with ``weights_only=True``, which refuses every class that is not on a list. Nothing
here, and no option of the toolkit, turns that off.
"""

from __future__ import annotations

import argparse
from typing import Any

import numpy as np
import torch

__all__ = ["allow_fairseq_checkpoints"]


def allow_fairseq_checkpoints() -> None:
    """Allow what fairseq's own checkpoints hold: its options, and a best metric that is a numpy number.

    With several processes, rank 0 also sends the checkpoint to the others through ``torch.save`` and ``torch.load``,
    with its tensors taken out and its options as an omegaconf container.
    """
    try:
        from numpy._core.multiarray import scalar
    except ImportError:  # numpy < 2
        from numpy.core.multiarray import scalar  # type: ignore[no-redef]
    numbers = [type(np.dtype(name)) for name in ("float64", "float32", "int64")]
    torch.serialization.add_safe_globals([argparse.Namespace, np.dtype, scalar, *numbers, *_broadcast_classes()])


def _broadcast_classes() -> list[Any]:
    import collections
    import typing

    from fairseq.distributed.utils import _TensorPlaceholder
    from omegaconf import AnyNode, DictConfig, ListConfig
    from omegaconf.base import ContainerMetadata, Metadata

    return [
        _TensorPlaceholder,
        DictConfig,
        ListConfig,
        AnyNode,
        ContainerMetadata,
        Metadata,
        typing.Any,
        collections.defaultdict,
        dict,
        list,
        int,
    ]
