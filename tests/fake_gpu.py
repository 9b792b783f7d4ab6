"""A GPU that computes nothing, on which a step fails where its host would have to wait for a number.

It is torch's ``meta`` device: tensors have shapes but no values, the step is the real one, its backward pass and its
optimizer included, and what asks for a device other than the CPU takes the GPU's way. :class:`HostWait` is raised where
a value is read, where the size of an output depends on values (``nonzero``, a boolean index, ``bincount``), and for
a copy between host and GPU that the host waits for.
"""

import contextlib

import pytest
import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from sot_base import later_values

GPU = torch.device("meta")
READ = ("_local_scalar_dense", "equal", "is_nonzero", "item", "nonzero", "masked_select", "bincount")
READ += ("unique", "unique_dim", "unique_consecutive", "_unique", "_unique2", "allclose", "argwhere", "nonzero_numpy")
CHECKED = ("_linalg_svd", "_linalg_eigh")  # whether they have converged
INDEXED = ("index", "index_put", "index_put_", "_unsafe_index", "_index_put_impl_", "_unsafe_index_put")


class HostWait(Exception):  # noqa: N818  (no error of the program)
    """The host would have to wait for the GPU."""


class NoWaits(TorchDispatchMode):
    """Operations of a block of code, in which the host never waits for the GPU."""

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        if any(tensor.device == GPU for tensor in _tensors((args, kwargs))) or kwargs.get("device") == GPU:
            reason = _reason(func, args, kwargs)
            if reason is not None:
                raise HostWait(f"{func} {reason}")
        return func(*args, **kwargs)


def _reason(func, args, kwargs):
    """Why the host would wait for an operation; None if it does not."""
    name = func.overloadpacket.__name__
    if name in READ or (name == "repeat_interleave" and "output_size" not in kwargs):
        return "reads values"
    if name in CHECKED:
        return "checks its result"
    if name == "_to_copy" and kwargs.get("device", args[0].device) != args[0].device:
        return None if kwargs.get("non_blocking") else f"waits for a copy from {args[0].device} to {kwargs['device']}"
    if name == "copy_" and args[0].device != args[1].device:
        is_number = args[1].dim() == 0 and args[1].device.type == "cpu"  # goes along as an argument
        asynchronous = is_number or kwargs.get("non_blocking") or (len(args) > 2 and args[2])
        return None if asynchronous else f"waits for a copy from {args[1].device} to {args[0].device}"
    if name in INDEXED:
        indices = _tensors(args[1])
        if any(index.dtype in (torch.bool, torch.uint8) for index in indices):
            return "selects by a mask"
        if any(index.device != GPU for index in indices):
            return "waits for a copy of its indices"
    return None


def _tensors(values):
    return [leaf for leaf in tree_leaves(values) if isinstance(leaf, torch.Tensor)]


class _NeverThere:
    """A copy that has not arrived in the host yet."""

    def __init__(self, values):
        assert values.device == GPU

    def has_arrived(self):
        return False

    def wait(self):
        raise HostWait("settles what is on its way")


@contextlib.contextmanager
def no_waits():
    """A block in which a wait of the host for the GPU is an error."""
    with pytest.MonkeyPatch.context() as patch, NoWaits():
        patch.setattr(later_values, "_HostCopy", _NeverThere)
        yield


def to_gpu(values):
    """Modules and tensors, also in dictionaries, tuples and lists, as they are on the GPU."""
    if isinstance(values, nn.Module | torch.Tensor):
        return values.to(GPU)
    if isinstance(values, dict):
        return {key: to_gpu(value) for key, value in values.items()}
    if isinstance(values, list | tuple):
        moved = [to_gpu(value) for value in values]
        return type(values)(*moved) if hasattr(values, "_fields") else type(values)(moved)
    return values
