"""A flipped bit in a ``.safetensors`` file is found, wherever it is."""

import json
import random

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file

from sot_base.errors import UsageError
from sot_base.safe_checkpoint import read_checkpoint
from sot_base.safetensors_checksum import KEY, add_checksum, check_checksum


@pytest.fixture
def tensors():
    generator = torch.Generator().manual_seed(1)
    return {"weight": torch.randn(5, 3, generator=generator), "bias": torch.arange(7), "ünicode": torch.ones(1).half()}


@pytest.fixture
def file(tensors, tmp_path):
    """A file with a checksum."""
    save_file(tensors, tmp_path / "model.safetensors", {"format": "pt"})
    add_checksum(tmp_path / "model.safetensors")
    return tmp_path / "model.safetensors"


def header_length(content):
    return 8 + int.from_bytes(content[:8], "little")


def test_the_file_holds_what_it_held(file, tensors):
    check_checksum(file)
    for loaded in (load_file(file), read_checkpoint(file)):
        assert loaded.keys() == tensors.keys()
        assert all(torch.equal(loaded[name], tensor) for name, tensor in tensors.items())
    with safe_open(file, "pt") as opened:
        assert opened.metadata().keys() == {"format", KEY}
    assert header_length(file.read_bytes()) % 8 == 0
    assert [path.name for path in file.parent.iterdir()] == [file.name]


def test_a_second_checksum_takes_the_place_of_the_first(file):
    content = file.read_bytes()
    add_checksum(file)
    assert file.read_bytes() == content


def test_every_flipped_bit_of_the_tensors_is_found(file):
    content = bytearray(file.read_bytes())
    for place in range(header_length(content), len(content)):
        bit = 1 << random.Random(place).randrange(8)
        content[place] ^= bit
        file.write_bytes(content)
        with pytest.raises(UsageError, match=r"checksum differs\): .*model\.safetensors; get or save it again"):
            read_checkpoint(file)
        content[place] ^= bit


def test_no_flipped_bit_of_the_header_gives_other_tensors(file, tensors):
    content = bytearray(file.read_bytes())
    for place in range(header_length(content)):
        for bit in range(8):
            content[place] ^= 1 << bit
            file.write_bytes(content)
            try:
                loaded = read_checkpoint(file)
            except UsageError:
                pass
            else:
                assert all(torch.equal(loaded[name], tensor) for name, tensor in tensors.items()), (place, bit)
            content[place] ^= 1 << bit


@pytest.mark.parametrize("metadata", [None, {"format": "pt"}])
def test_a_file_without_a_checksum_is_read(metadata, tensors, tmp_path):
    save_file(tensors, tmp_path / "x.safetensors", metadata)
    check_checksum(tmp_path / "x.safetensors")
    assert read_checkpoint(tmp_path / "x.safetensors").keys() == tensors.keys()


@pytest.mark.parametrize("header", ["[]", "{", '{"__metadata__": 3}', "[" * 100_000, json.dumps({"a": 1})])
def test_a_header_of_another_kind_is_the_readers_affair(header, tmp_path):
    path = tmp_path / "x.safetensors"
    path.write_bytes(len(header).to_bytes(8, "little") + header.encode())
    check_checksum(path)
    with pytest.raises(UsageError, match="cut off or damaged"):
        read_checkpoint(path)
