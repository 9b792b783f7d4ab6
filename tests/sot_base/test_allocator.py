"""Memory that is freed stays in the process; counted by page faults, without a clock."""

import os
import subprocess
import sys

import pytest

COUNT = """
import resource, sys
from sot_base.allocator import keep_freed_memory
print(sys.argv[1] == "keep" and keep_freed_memory())
def allocate():
    for size in (60, 40, 60, 50):
        bytearray(size << 20)
allocate()
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
for _ in range(5):
    allocate()
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""
is_glibc = sys.platform == "linux" and (os.confstr("CS_GNU_LIBC_VERSION") or "").startswith("glibc")


def count(what, **environment):
    environment |= {name: value for name, value in os.environ.items() if not name.startswith(("MALLOC_", "GLIBC_"))}
    words = [sys.executable, "-c", COUNT, what]
    output = subprocess.run(words, capture_output=True, text=True, check=True, env=environment).stdout.split()
    return output[0] == "True", int(output[1])


@pytest.mark.skipif(not is_glibc, reason="the allocator is not glibc's")
def test_freed_memory_is_used_again():
    kept, faults = count("keep")
    assert kept
    assert faults < 0.1 * count("return")[1]


@pytest.mark.parametrize("name", ["MALLOC_ARENA_MAX", "GLIBC_TUNABLES"])
def test_the_environment_takes_precedence(name):
    value = {"MALLOC_ARENA_MAX": "2", "GLIBC_TUNABLES": "glibc.malloc.tcache_count=0"}[name]
    assert not count("keep", **{name: value})[0]


def test_another_library_is_left_alone(monkeypatch):
    from sot_base import allocator

    monkeypatch.setattr(allocator.os, "confstr", lambda name: None)
    assert not allocator.keep_freed_memory()
    monkeypatch.setattr(allocator.os, "confstr", lambda name: "glibc 2.36")
    monkeypatch.setattr(allocator.ctypes, "CDLL", lambda name: object())
    assert not allocator.keep_freed_memory()
