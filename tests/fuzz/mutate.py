"""Damage files: bytes, lines, values of JSON, values and pickles of checkpoints. A seed gives the same damage again."""

from __future__ import annotations

import argparse
import copy
import io
import json
import random
import zipfile
from collections.abc import Callable, Mapping
from typing import Any

import torch

Mutator = Callable[[bytes, random.Random], bytes]

ODD_BYTES = (b"\0", b"\xff", b"\x80", b"\n", b"\r", b"\t", b" ", b'"', b"{", b"]", b"9" * 30, b"../", b"\xe2\x80\xa8")
ODD_VALUES = (
    *(None, True, -1, 0, 2, 2**31, 2**63, 2**70, -(2**40), 0.5, 1e308, float("nan"), float("inf"), "", " ", "a", "-1"),
    *(
        "1e9",
        "\0",
        "x" * 5000,
        "../../etc/passwd",
        "/dev/zero",
        "--user-dir=/tmp",
        "${oc.env:HOME}",
        "é\u2028",
        "\ud83d",
    ),
    *([], [[]], [1], ["a"], {}, {"a": 1}, {"": None}, [None] * 3, [[[[[]]]]]),
)
ODD_TENSORS = (
    *(lambda: torch.zeros(0), lambda: torch.zeros(()), lambda: torch.zeros(3, 0), lambda: torch.ones(2, 2, 2)),
    *(lambda: torch.zeros(1).expand(10**6, 10**6), lambda: torch.tensor([float("nan")] * 4)),
    *(
        lambda: torch.zeros(4, dtype=torch.int64),
        lambda: torch.zeros(4, dtype=torch.bool),
        lambda: torch.eye(3).to_sparse(),
    ),
)


def damage_bytes(content: bytes, rng: random.Random) -> bytes:
    """Flip bits, overwrite, insert, remove, repeat or cut off."""
    data = bytearray(content)
    for _ in range(rng.choice((1, 1, 1, 2, 8))):
        start = rng.randrange(len(data) + 1)
        end = min(len(data), start + rng.choice((1, 2, 4, 16, 200)))
        action = rng.randrange(6)
        if action == 0 and start < len(data):
            data[start] ^= 1 << rng.randrange(8)
        elif action == 1:
            data[start:end] = rng.randbytes(end - start)
        elif action == 2:
            data[start:start] = rng.choice(ODD_BYTES)
        elif action == 3:
            del data[start:end]
        elif action == 4:
            data[start:start] = data[start:end] * rng.choice((1, 3, 50))
        else:
            del data[start:]
    return bytes(data)


def damage_lines(content: bytes, rng: random.Random) -> bytes:
    """Remove, repeat, swap, join, lengthen or empty lines, or damage bytes."""
    lines = content.split(b"\n")
    place = rng.randrange(len(lines))
    action = rng.randrange(8)
    if action == 0:
        del lines[place]
    elif action == 1:
        lines.insert(place, rng.choice(lines))
    elif action == 2:
        lines[place] += b"\t" + rng.choice(lines)
    elif action == 3:
        lines[place] = b""
    elif action == 4:
        lines[place] *= rng.choice((2, 3000))
    elif action == 5:
        lines[place] = rng.choice(ODD_BYTES) + lines[place]
    elif action == 6:
        lines[place] = lines[place].replace(b"\t", b" ").replace(b" ", b"", 1)
    else:
        return damage_bytes(content, rng)
    return b"\n".join(lines)


def damage_json(content: bytes, rng: random.Random) -> bytes:
    """Replace, remove, rename or add a value, nest deeply, write a long number, or damage bytes."""
    action = rng.randrange(10)
    if action < 3:
        return damage_bytes(content, rng)
    if action == 3:
        place = rng.randrange(len(content) + 1)
        return (
            content[:place] + rng.choice((b"[" * 5000, b"9" * 6000, b'{"a":' * 900, b"NaN", b"1e999")) + content[place:]
        )
    return json.dumps(damage_value(json.loads(content), rng)).encode()


def damage_value(value: Any, rng: random.Random) -> Any:
    """A copy of a structure of dictionaries, namespaces, lists and plain values with something else in one place."""
    value = copy.deepcopy(value)
    places = list(_places(value))
    if not places:
        return rng.choice(ODD_VALUES)
    for _ in range(rng.choice((1, 1, 2, 5))):
        container, key = rng.choice(places)
        if isinstance(container, Mapping) and key in container:
            _damage_entry(container, key, rng)
        elif isinstance(container, list) and key < len(container):
            container[key] = _odd(container[key], rng)
    return value


def _damage_entry(container: Any, key: Any, rng: random.Random) -> None:
    action = rng.randrange(6)
    if action == 0:
        del container[key]
    elif action == 1:
        container[f"{key}{rng.choice(('', 'x', '/', '.'))}"] = container.pop(key)
    elif action == 2:
        container[rng.choice(("a", "", "é", "name"))] = _odd(container[key], rng)
    else:
        container[key] = _odd(container[key], rng)


def _odd(value: Any, rng: random.Random) -> Any:
    if isinstance(value, torch.Tensor) and rng.random() < 0.7:
        return rng.choice(ODD_TENSORS)()
    if isinstance(value, list) and rng.random() < 0.3:
        return value[: rng.randrange(len(value) + 1)] * rng.choice((1, 2))
    if isinstance(value, (int, float)) and rng.random() < 0.3:
        return value * rng.choice((-1, 2, 1000, 10**9))
    return rng.choice(ODD_VALUES)


def _places(value: Any) -> list[tuple[Any, Any]]:
    """Every (container, key) in a structure; those near the top as often as all others together."""
    found: list[tuple[Any, Any]] = []
    waiting = [(value, 0)]
    while waiting and len(found) < 20_000:
        item, depth = waiting.pop()
        item = vars(item) if isinstance(item, argparse.Namespace) else item
        pairs = item.items() if isinstance(item, dict) else enumerate(item) if isinstance(item, list) else ()
        for key, inner in pairs:
            found += [(item, key)] * max(1, 20 >> 2 * depth)
            waiting.append((inner, depth + 1))
    return found


def damage_checkpoint(content: bytes, rng: random.Random) -> bytes:
    """Change values of a file of ``torch.save``, or its pickle with checksums that fit, or bytes."""
    action = rng.randrange(10)
    if action < 2:
        return damage_bytes(content, rng)
    if action < 5:
        return _damage_records(content, rng)
    buffer = io.BytesIO()
    try:
        value = torch.load(io.BytesIO(content), weights_only=False)  # the file is our own
    except RuntimeError:  # an archive of numpy
        return _damage_records(content, rng)
    torch.save(damage_value(value, rng), buffer, _use_new_zipfile_serialization=action < 8)
    return damage_bytes(buffer.getvalue(), rng) if action == 9 else buffer.getvalue()


def _damage_records(content: bytes, rng: random.Random) -> bytes:
    """Damage the pickle of a zip file, or another record, and write the file anew with checksums that fit."""
    buffer = io.BytesIO()
    try:
        with zipfile.ZipFile(io.BytesIO(content)) as archive:
            records = {name: archive.read(name) for name in archive.namelist()}
    except zipfile.BadZipFile:
        return damage_bytes(content, rng)
    pickles = [name for name in records if name.endswith("data.pkl")]
    name = pickles[0] if pickles and rng.random() < 0.8 else rng.choice(list(records))
    records[name] = damage_bytes(records[name], rng)
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED if rng.random() < 0.05 else zipfile.ZIP_STORED) as archive:
        for record, data in records.items():
            archive.writestr(record, data)
    return buffer.getvalue()
