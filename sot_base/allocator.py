"""Memory that a command frees and needs again in the next step."""

from __future__ import annotations

import ctypes
import os

__all__ = ["keep_freed_memory"]

M_TRIM_THRESHOLD, M_MMAP_THRESHOLD = -1, -3  # of malloc.h
MIB = 2**20
KEPT = 1024 * MIB
LARGEST_OF_OLD_GLIBC = 32 * MIB


def keep_freed_memory() -> bool:
    """Let glibc's allocator keep freed arrays for the next ones instead of returning each to the system.

    A training step on the CPU allocates the same arrays again and again. By default those above 32 MiB, and smaller
    ones at the end of the heap, are mapped anew each time, and the kernel fills them with zeros page by page. Variables
    of the environment that configure the allocator (``MALLOC_...``, ``GLIBC_TUNABLES``) take precedence.

    Returns:
        Whether the allocator is glibc's and was told so.
    """
    if any(name.startswith("MALLOC_") or name == "GLIBC_TUNABLES" for name in os.environ):
        return False
    try:
        if not (os.confstr("CS_GNU_LIBC_VERSION") or "").startswith("glibc"):
            return False
        mallopt = ctypes.CDLL(None).mallopt
    except (AttributeError, OSError, ValueError):  # not Linux, or another library
        return False
    keeps = mallopt(M_MMAP_THRESHOLD, KEPT) or mallopt(M_MMAP_THRESHOLD, LARGEST_OF_OLD_GLIBC)
    return bool(keeps and mallopt(M_TRIM_THRESHOLD, KEPT))
