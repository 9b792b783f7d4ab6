import argparse
import fractions
import io
import os
import pickle
import zipfile
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import save_file

from sot_base.errors import UsageError
from sot_base.safe_checkpoint import allowed, read_checkpoint, read_tensor

STATE = {"w": torch.arange(3000.0).reshape(30, 100), "b": torch.ones(7, dtype=torch.int64)}


def saved(path, content, **kwargs):
    torch.save(content, path, **kwargs)
    return path


@pytest.fixture
def checkpoint(tmp_path):
    return saved(tmp_path / "model.pt", {"model": STATE, "epoch": 3})


def refused(path, problem):
    with pytest.raises(UsageError, match=problem) as caught:
        read_checkpoint(path)
    text = str(caught.value)
    assert f": {path.absolute()}; " in text
    assert "\n" not in text


@pytest.mark.parametrize("lazy", [True, False])
@pytest.mark.parametrize("zipped", [True, False])
def test_what_training_keeps_is_read_back(tmp_path, lazy, zipped):
    content = {
        **{"model": STATE, "args": argparse.Namespace(lr=[0.1], arch="roberta"), "best": np.float64(0.5)},
        **{"steps": np.int64(3), "flag": np.bool_(True), "names": ("a", "b"), "none": None},
    }
    path = saved(tmp_path / "model.pt", content, _use_new_zipfile_serialization=zipped)
    found = read_checkpoint(path, lazy=lazy)
    torch.testing.assert_close(found.pop("model"), content.pop("model"), rtol=0, atol=0)
    assert found == content


def test_safetensors(tmp_path):
    save_file(STATE, tmp_path / "model.safetensors")
    (tmp_path / "other.bin").write_bytes((tmp_path / "model.safetensors").read_bytes())
    for name in ("model.safetensors", "other.bin"):
        torch.testing.assert_close(read_checkpoint(tmp_path / name), STATE, rtol=0, atol=0)
    (tmp_path / "model.safetensors").write_bytes((tmp_path / "other.bin").read_bytes()[:-9])
    refused(tmp_path / "model.safetensors", "cut off or damaged")


def test_every_flipped_bit_of_a_record_is_found(checkpoint):
    content = bytearray(checkpoint.read_bytes())
    with zipfile.ZipFile(checkpoint) as archive:
        records = [(record.header_offset, record.file_size, record.filename) for record in archive.infolist()]
    places = []
    for offset, size, name in records:
        start = content.index(name.encode(), offset) + len(name)
        start += int.from_bytes(content[offset + 28 : offset + 30], "little")  # the extra field, torch's alignment
        places += [start + step for step in range(0, size, max(1, size // 40))]
    assert len(places) > 100
    for number, place in enumerate(places):
        bit = 1 << number % 8
        content[place] ^= bit
        checkpoint.write_bytes(content)
        refused(checkpoint, "cut off or damaged")
        content[place] ^= bit
    checkpoint.write_bytes(content)
    assert read_checkpoint(checkpoint)["epoch"] == 3


def test_a_file_that_torch_wrote_without_checksums_is_read(tmp_path):
    torch.serialization.set_crc32_options(False)
    try:
        path = saved(tmp_path / "model.pt", {"model": STATE})
    finally:
        torch.serialization.set_crc32_options(True)
    assert read_checkpoint(path)["model"]["w"][1, 1] == 101


@pytest.mark.parametrize("length", [0, 1, 20, 1000, -1, -200])
@pytest.mark.parametrize("zipped", [True, False])
def test_half_a_file(tmp_path, length, zipped):
    path = saved(tmp_path / "model.pt", {"model": STATE}, _use_new_zipfile_serialization=zipped)
    path.write_bytes(path.read_bytes()[:length])
    refused(path, "the file is empty" if length == 0 else "cut off or damaged|not a checkpoint")


@pytest.mark.parametrize(
    "content,problem",
    [
        (b"version https://git-lfs.github.com/spec/v1\noid sha256:0\n", "a Git LFS pointer"),
        (b"<!DOCTYPE html><html>404</html>", "not a checkpoint"),
        (b"text\tlabel\na\tb\n", "not a checkpoint"),
        (b"PK\x03\x04 not an archive", "not a checkpoint|cut off or damaged"),
        (b"\x40\0\0\0\0\0\0\0{", "cut off or damaged"),
    ],
)
def test_other_files(tmp_path, content, problem):
    path = tmp_path / "model.pt"
    path.write_bytes(content)
    refused(path, problem)


def test_what_is_not_there(tmp_path):
    refused(tmp_path / "none.pt", "no such file")
    refused(tmp_path, "a folder where a file is expected")


def test_a_file_that_may_not_be_read_is_said_to_be_so(checkpoint, monkeypatch):
    def denied(*_args, **_kwargs):
        raise PermissionError(13, "Permission denied", str(checkpoint))

    monkeypatch.setattr(Path, "open", denied)
    refused(checkpoint, "Permission denied: .*check who may read it")


@pytest.mark.parametrize("content", [[1], torch.ones(2), "text", None])
def test_what_is_no_dictionary(tmp_path, content):
    refused(saved(tmp_path / "model.pt", content), rf"a saved {type(content).__name__} where a dictionary is expected")


class Runs:
    def __reduce__(self):
        return os.system, ("touch canary",)


@pytest.mark.parametrize("zipped", [True, False])
def test_classes_that_are_not_allowed_are_named_and_nothing_runs(tmp_path, zipped, monkeypatch):
    monkeypatch.chdir(tmp_path)
    path = saved(tmp_path / "model.pt", {"a": Runs()}, _use_new_zipfile_serialization=zipped)
    refused(path, r"needs \w+\.system, which safe loading refuses")
    path = saved(path, {"a": fractions.Fraction(1, 2)}, _use_new_zipfile_serialization=zipped)
    refused(path, r"needs fractions\.Fraction, which safe loading refuses")
    assert not (tmp_path / "canary").exists()


def test_classes_are_allowed_while_a_file_is_read_only(tmp_path):
    path = saved(tmp_path / "model.pt", {"a": fractions.Fraction(1, 2)})
    assert read_checkpoint(path, [fractions.Fraction])["a"] == fractions.Fraction(1, 2)
    before = torch.serialization.get_safe_globals()
    torch.serialization.add_safe_globals([fractions.Fraction])  # by a library, say
    try:
        refused(path, "which safe loading refuses")
        with allowed([]):
            assert not torch.serialization.get_safe_globals()
        assert fractions.Fraction in torch.serialization.get_safe_globals()
    finally:
        torch.serialization.clear_safe_globals()
        torch.serialization.add_safe_globals(before)


@pytest.mark.parametrize("core", ["core", "_core"])
def test_numbers_of_numpy_1_and_2(tmp_path, core):
    path = saved(tmp_path / "model.pt", {"best": np.float64(0.5)})
    files = {}
    with zipfile.ZipFile(path) as archive:
        files = {name: archive.read(name) for name in archive.namelist()}
    name = next(name for name in files if name.endswith("data.pkl"))
    files[name] = files[name].replace(b"numpy._core.multiarray", f"numpy.{core}.multiarray".encode())
    with zipfile.ZipFile(path, "w") as archive:
        for name, content in files.items():
            archive.writestr(name, content)
    assert read_checkpoint(path)["best"] == 0.5


def test_a_small_file_takes_no_memory(tmp_path):
    path = tmp_path / "model.pt"
    source = saved(tmp_path / "plain.pt", {"w": torch.zeros(10**6)})
    with zipfile.ZipFile(source) as plain, zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for name in plain.namelist():
            archive.writestr(name, plain.read(name))
    refused(path, "a compressed archive where a checkpoint is expected")
    refused(saved(path, {"w": torch.zeros(1).expand(10**9, 10**9)}), r"a tensor of shape \(1000000000, 1000000000\)")
    path.write_bytes(pickle.dumps({"a": bytearray(5)}, protocol=2))
    refused(path, "needs bytearray, which safe loading refuses")


def test_values_without_end(tmp_path):
    endless = {}
    endless["self"] = endless
    refused(saved(tmp_path / "a.pt", endless), "its values are nested without end")
    laughs = ["ha"] * 10
    for _ in range(12):
        laughs = [laughs] * 10
    refused(saved(tmp_path / "b.pt", {"laughs": laughs}), "its values are nested without end")


def test_a_stream_of_a_process_is_no_checkpoint(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    refused(tmp_path / "pipe", "a device or a pipe where a file is expected")


def test_reading_is_the_same_as_torchs(checkpoint):
    buffer = io.BytesIO(checkpoint.read_bytes())
    torch.testing.assert_close(read_checkpoint(checkpoint), torch.load(buffer, weights_only=True), rtol=0, atol=0)


@pytest.mark.parametrize("zipped", [True, False])
def test_a_single_tensor_from_bytes(zipped):
    def bytes_of(value):
        buffer = io.BytesIO()
        torch.save(value, buffer, _use_new_zipfile_serialization=zipped)
        return buffer.getvalue()

    assert read_tensor(bytes_of(STATE["w"])).equal(STATE["w"])
    with pytest.raises(ValueError, match="a saved dict where a dense tensor is expected"):
        read_tensor(bytes_of(STATE))
    with pytest.raises(ValueError, match="a saved Tensor where a dense tensor is expected"):
        read_tensor(bytes_of(STATE["w"].to_sparse()))
    with pytest.raises(ValueError, match="a tensor of shape"):
        read_tensor(bytes_of(torch.zeros(1).expand(10**9, 10**9)))
    for content in (b"", b"text", bytes_of(STATE["w"])[:-50], bytes_of(argparse.Namespace(a=1))):
        with pytest.raises(ValueError, match=r"it is cut off, or no file of torch\.save|cut off or damaged"):
            read_tensor(content)


def test_plain_values_alone_are_read_without_their_checksums(checkpoint):
    content = bytearray(checkpoint.read_bytes())
    place = content.index(STATE["w"].numpy().tobytes()[400:440])
    content[place] ^= 1
    checkpoint.write_bytes(content)
    assert read_checkpoint(checkpoint, verify=False)["epoch"] == 3
    refused(checkpoint, r"cut off or damaged \(the checksum of .* differs\)")
