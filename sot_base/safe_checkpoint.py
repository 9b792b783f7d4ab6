"""Where it is decided that a file of weights is safe to read, and how it is read.

* No code of the file runs: pickles are read with ``weights_only=True`` alone, and besides tensors and plain values only
  :func:`harmless_classes` and those that a caller names are built. No option turns that off.
* A flipped bit is found: the CRC-32 that ``torch.save`` writes for every record is checked; ``torch.load`` ignores it.
  So is the one of a ``.safetensors`` file (:mod:`sot_base.safetensors_checksum`).
* A small file cannot ask for much memory or time: records are stored as they are, not compressed, tensors are no larger
  than their data, and containers are no deeper and no more than those of real checkpoints.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import mmap
import os
import pickle
import re
import stat
import zipfile
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import IO, Any

import torch

from sot_base.errors import UsageError
from sot_base.safetensors_checksum import check_checksum

__all__ = ["allowed", "check_records", "harmless_classes", "read_checkpoint", "read_tensor"]

AGAIN = "get or save it again"
MAX_DEPTH = 64  # of containers in containers
MAX_ITEMS = 10_000_000  # of all containers, each counted as often as it is found


def read_checkpoint(
    path: str | os.PathLike[str], classes: Iterable[Any] = (), lazy: bool = True, verify: bool = True
) -> dict[str, Any]:
    """Read a ``.safetensors`` file, or a file of ``torch.save`` that holds a dictionary, on the CPU.

    Args:
        path: The file.
        classes: Further classes that it may hold.
        lazy: Read tensors when they are used. The file must then not be overwritten in place meanwhile.
        verify: Check the checksums, for which the whole file is read.

    Raises:
        UsageError: If it is absent, cannot be read, is damaged, no checkpoint, or holds classes that are not allowed.
    """
    path = Path(path)
    where = path.absolute()
    start = first_bytes(path)
    if path.suffix == ".safetensors" or start[8:9] == b"{":
        return _read_safetensors(path, verify)
    is_zip = _is_zip(path, where)
    if is_zip:
        check_records(path, verify)
    with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as mapped:
        _refuse_byte_arrays(mapped, where)
    with allowed([*harmless_classes(), *classes]):
        try:
            content = torch.load(path, map_location="cpu", weights_only=True, mmap=lazy and is_zip)
        except pickle.UnpicklingError as error:
            refused = _refused_classes(path, str(error))
            if refused:
                raise UsageError(
                    f"the file needs {', '.join(refused)}, which safe loading refuses: {where}; save it again with "
                    "tensors and plain values alone, or as safetensors"
                ) from None
            raise UsageError(f"not a checkpoint: {where}; give a file of torch.save or safetensors") from None
        except (RuntimeError, EOFError, OSError) as error:
            raise _damaged(where, error) from None
        except Exception:  # what torch makes of a text that begins like a pickle, or of a damaged one
            raise UsageError(f"not a checkpoint: {where}; give a file of torch.save or safetensors") from None
    if not isinstance(content, Mapping):
        raise UsageError(f"a saved {type(content).__name__} where a dictionary is expected: {where}; save a state dict")
    _check_content(content, where)
    return dict(content)


def read_tensor(content: bytes) -> torch.Tensor:
    """Read the bytes of a file of ``torch.save`` that holds a single dense tensor.

    Raises:
        ValueError: If they are anything else.
    """
    where, stream = Path("the file"), io.BytesIO(content)
    try:
        if _is_zip(stream, where):
            _check_archive(stream, len(content), where, verify=True)
        _refuse_byte_arrays(content, where)
        stream.seek(0)
        with allowed([]):
            value = torch.load(stream, map_location="cpu", weights_only=True)
        _check_content(value, where)
    except UsageError as error:
        raise ValueError(str(error).partition(": ")[0]) from None
    except Exception as error:  # torch raises almost anything for other files
        raise ValueError(f"it is cut off, or no file of torch.save: {type(error).__name__}") from error
    if not isinstance(value, torch.Tensor) or value.layout is not torch.strided:
        raise ValueError(f"a saved {type(value).__name__} where a dense tensor is expected")
    return value.detach()


def check_records(path: Path, verify: bool = True) -> None:
    """Check the records of a zip file that ``torch.save`` wrote: that none is compressed, and each one's CRC-32.

    Args:
        path: The file.
        verify: Check the CRC-32, too.

    Raises:
        UsageError: Naming the record that is damaged, or of a kind that torch does not write.
    """
    with path.open("rb") as file:
        _check_archive(file, path.stat().st_size, path.absolute(), verify)


def _is_zip(file: Path | IO[bytes], where: Path) -> bool:
    try:
        return zipfile.is_zipfile(file)
    except zipfile.BadZipFile as error:  # of an archive in several parts
        raise _damaged(where, error) from None


def _check_archive(file: IO[bytes], size: int, where: Path, verify: bool) -> None:
    try:
        with zipfile.ZipFile(file) as archive:
            records = archive.infolist()
            if any(record.compress_type != zipfile.ZIP_STORED for record in records):
                raise UsageError(f"a compressed archive where a checkpoint is expected: {where}; {AGAIN}")
            if sum(record.file_size for record in records) > size:
                raise _damaged(where, "its records are larger than the file")
            if verify and any(record.CRC for record in records):  # torch writes 0 if it is told to compute none
                damaged = archive.testzip()
                if damaged is not None:
                    raise _damaged(where, f"the checksum of {damaged} differs")
    except (zipfile.BadZipFile, NotImplementedError, EOFError, RuntimeError, ValueError, OSError) as error:
        if isinstance(error, UsageError):
            raise
        raise _damaged(where, error) from None


def harmless_classes() -> list[Any]:
    """What may be built from a file besides tensors: namespaces of options, and numpy numbers such as a best metric.

    numpy 1 and 2 write the latter under different names; a file of either can be read with either.
    """
    classes: list[Any] = [argparse.Namespace]
    with contextlib.suppress(ImportError):
        import numpy as np

        number = np.float64(0).__reduce__()[0]  # numpy's function that builds a scalar
        classes += [np.dtype, *((number, f"numpy.{core}.multiarray.scalar") for core in ("core", "_core"))]
        classes += [type(np.dtype(name)) for name in ("float64", "float32", "float16", "int64", "int32", "bool")]
    return classes


@contextlib.contextmanager
def allowed(classes: Iterable[Any]) -> Iterator[None]:
    """Let ``torch.load`` build these classes within the block, and no others that a library has allowed elsewhere."""
    before = torch.serialization.get_safe_globals()
    torch.serialization.clear_safe_globals()
    torch.serialization.add_safe_globals(list(classes))
    try:
        yield
    finally:
        torch.serialization.clear_safe_globals()
        torch.serialization.add_safe_globals(before)


def first_bytes(path: Path) -> bytes:
    """Read the start of a file that must be there.

    Raises:
        UsageError: If it is not, cannot be read, is empty, or a pointer in its place.
    """
    where = path.absolute()
    try:
        kind = path.stat().st_mode
        if stat.S_ISDIR(kind):
            raise UsageError(f"a folder where a file is expected: {where}; give the file in it")
        if not stat.S_ISREG(kind):
            raise UsageError(f"a device or a pipe where a file is expected: {where}; give a file")
        with path.open("rb") as file:
            start = file.read(64)
    except FileNotFoundError:
        raise UsageError(f"no such file: {where}; check the path") from None
    except OSError as error:
        raise UsageError(f"{error.strerror}: {where}; check who may read it") from None
    if not start:
        raise UsageError(f"the file is empty: {where}; {AGAIN}")
    if start.startswith(b"version https://git-lfs"):
        raise UsageError(f"a Git LFS pointer, not the file itself: {where}; run git lfs pull")
    return start


def _read_safetensors(path: Path, verify: bool) -> dict[str, Any]:
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    if verify:
        check_checksum(path)
    try:
        return dict(load_file(path))
    except (SafetensorError, ValueError, RuntimeError, OSError) as error:
        raise _damaged(path.absolute(), error) from None


def _check_content(content: Any, where: Path) -> None:
    """Refuse containers that hold themselves or very many others, and tensors that repeat their data."""
    left, waiting = MAX_ITEMS, [(content, 0)]
    while waiting:
        value, depth = waiting.pop()
        if isinstance(value, torch.Tensor):
            if value.layout is torch.strided and value.nbytes > value.untyped_storage().nbytes():
                raise _damaged(where, f"a tensor of shape {tuple(value.shape)} has less data")
            continue
        items = _items(value)
        left -= len(items)
        if depth > MAX_DEPTH or left < 0:
            raise UsageError(f"not a checkpoint, its values are nested without end: {where}; {AGAIN}")
        waiting += [(item, depth + 1) for item in items]


def _items(value: Any) -> list[Any]:
    if isinstance(value, argparse.Namespace):
        return list(vars(value).items())
    if isinstance(value, Mapping):
        return list(value.items())
    return list(value) if isinstance(value, (list, tuple, set)) else []


def _refuse_byte_arrays(content: bytes | mmap.mmap, where: Path) -> None:
    """Refuse what torch allows but no checkpoint needs: ``bytearray(n)`` takes n bytes of memory."""
    if any(content.find(b"c%s\nbytearray\n" % module) >= 0 for module in (b"builtins", b"__builtin__")):
        raise UsageError(f"the file needs bytearray, which safe loading refuses: {where}; {AGAIN}")


def _refused_classes(path: Path, message: str) -> list[str]:
    try:
        return sorted(torch.serialization.get_unsafe_globals_in_checkpoint(path))
    except Exception:  # torch looks into its zip files only; the message names one class
        return re.findall(r"GLOBAL (\S+)", message)[:1]


def _damaged(where: Path, reason: str | Exception) -> UsageError:
    reason = str(reason).split(". ")[0].partition("\n")[0] or "it ends too early"
    return UsageError(f"the file is cut off or damaged ({reason}): {where}; {AGAIN}")
