import json
import os
from dataclasses import dataclass
from typing import Any

import msgspec
import pytest

from sot_base.errors import UsageError
from sot_base.small_files import parse_yaml, read_json, read_text, read_yaml


class Inner(msgspec.Struct):
    size: int


@dataclass
class Content:
    name: str
    parts: dict[str, Inner]
    rate: float = 0.5


GOOD = {"name": "é", "parts": {"a": {"size": 3}}, "rate": 2}


def refused(read, path, problem):
    with pytest.raises(UsageError, match=problem) as caught:
        read(path, Content, "get it again")
    text = str(caught.value)
    assert text.endswith(f": {path.absolute()}; get it again")
    assert "\n" not in text


@pytest.mark.parametrize("read", [read_json, read_yaml])
def test_a_file_is_read_into_its_type(tmp_path, read):
    path = tmp_path / "file"
    path.write_text(json.dumps(GOOD, ensure_ascii=False), encoding="utf-8")
    assert read(path, Content) == Content("é", {"a": Inner(3)}, 2.0)
    assert read(path, dict[str, Any]) == GOOD


@pytest.mark.parametrize("read", [read_json, read_yaml])
@pytest.mark.parametrize(
    "content,problem",
    [
        ({}, "^name is missing: "),
        ({**GOOD, "parts": {"a": {}}}, r"^parts\[\.\.\.\]\.size is missing: "),
        ({**GOOD, "parts": {"a": {"size": "3"}}}, r"^parts\[\.\.\.\]\.size: expected int, got str: "),
        ({**GOOD, "rate": None}, "^rate: expected float, got null: "),
        ([], "^expected object, got array: "),
        (3, "^expected object, got int: "),
    ],
)
def test_a_field_is_named(tmp_path, read, content, problem):
    path = tmp_path / "file"
    path.write_text(json.dumps(content), encoding="utf-8")
    refused(read, path, problem)


@pytest.mark.parametrize("read", [read_json, read_yaml])
def test_files_that_cannot_be_read(tmp_path, read):
    refused(read, tmp_path / "none", r"cannot read none \(No such file or directory\)")
    refused(read, tmp_path, "a folder where a file is expected")
    os.mkfifo(tmp_path / "pipe")
    refused(read, tmp_path / "pipe", "a device or a pipe where a file is expected")
    (tmp_path / "binary").write_bytes(b"\x80\x02")
    refused(read, tmp_path / "binary", r"not UTF-8 \(byte 0\)")
    with (tmp_path / "large").open("wb") as file:
        file.truncate(10**9)
    refused(read, tmp_path / "large", "larger than")


def test_a_file_that_may_not_be_read(tmp_path, monkeypatch):
    def denied(path, *_args, **_kwargs):
        raise PermissionError(13, "Permission denied", str(path))

    (tmp_path / "file").write_text("{}")
    monkeypatch.setattr("pathlib.Path.open", denied)
    with pytest.raises(UsageError, match=r"cannot read file \(Permission denied\): .*; ask"):
        read_text(tmp_path / "file", "ask")


@pytest.mark.parametrize(
    "text", ["", "{", '{"a": 1} b', "[" * 10**5, '{"a":' * 10**5, "1" * 6000, '{"name": "\\ud800"}', "nul", '{"a": 1,}']
)
def test_what_is_no_json(tmp_path, text):
    (tmp_path / "file").write_text(text)
    refused(read_json, tmp_path / "file", "^not a JSON file ")


BOMB = "a: &a [x, x, x, x, x, x, x, x, x]\n" + "".join(
    f"{new}: &{new} [{', '.join([f'*{old}'] * 9)}]\n" for old, new in zip("abcdefgh", "bcdefghi", strict=True)
)


@pytest.mark.parametrize(
    "text,problem",
    [
        (BOMB, "more than 100000 values"),
        ("[" * 50_000, "nesting depth|levels"),
        ("{a: " * 900, "levels|nesting depth"),
        ("- " * 5000, "levels|nesting depth"),
        ("a: &a [*a]", "the alias a holds itself or stands for nothing"),
        ("a: *b", "the alias b|undefined alias"),
        (f"x: {'9' * 6000}", "a number of 6000 digits"),
        (f"x: 1{':1' * 5000}", "a number of 10001 digits"),
        ("a: b: c", "line 1"),
        ("\ta: b", "line 1"),
        ("? [a]\n: b", "unhashable key"),
        ("x: !!timestamp y", "not what its tag says"),
        ("x: !!int y", "invalid literal"),
        ("x: 2020-13-45", "month must be in"),
        ("x: !!python/object/apply:os.system ['touch canary']", "could not determine a constructor"),
        ("--- a\n--- b", "another document"),
    ],
)
def test_what_is_no_yaml(text, problem):
    with pytest.raises(UsageError, match=f"^not a YAML file .*{problem}.*: the file; correct it") as caught:
        parse_yaml(text, Any, "the file", "correct it")
    assert len(str(caught.value)) < 300


def test_aliases_are_read():
    text = "base: &base {lr: 0.1, steps: [1, 2]}\nrun: {<<: *base, name: a}\nagain: *base\n"
    found = parse_yaml(text, dict[str, Any], "the file", "correct it")
    assert found["run"] == {"lr": 0.1, "steps": [1, 2], "name": "a"}
    assert found["again"] == {"lr": 0.1, "steps": [1, 2]}
