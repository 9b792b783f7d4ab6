"""docs/benchmarks.md: its commands exist, with these options; `make bench` runs every command."""

import argparse
import importlib
import re
import shlex

import pytest

from tests.support import REPOSITORY

TEXT = (REPOSITORY / "docs" / "benchmarks.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"^```bash\n(.*?)^```", TEXT, flags=re.MULTILINE | re.DOTALL)
COMMANDS = [line for text in BLOCKS for line in text.replace("\\\n", " ").splitlines()]
NAMES = re.findall(r"^\| `benchmarks\.(\w+)` \|", TEXT, flags=re.MULTILINE)


class Parsed(Exception):  # noqa: N818
    """The command line is right; nothing runs."""


@pytest.mark.parametrize("command", COMMANDS)
def test_a_command_is_understood(command, monkeypatch):
    python, flag, module, *words = shlex.split(command)
    assert (python, flag) == ("python", "-m")
    parse = argparse.ArgumentParser.parse_args

    def only_parse(*args, **kwargs):
        parse(*args, **kwargs)
        raise Parsed

    monkeypatch.setattr(argparse.ArgumentParser, "parse_args", only_parse)
    with pytest.raises(Parsed):
        importlib.import_module(module).main(words)


def test_every_command_is_described_and_run():
    files = {path.stem for path in (REPOSITORY / "benchmarks").glob("*.py")}
    commands = {name for name in files if "benchmark_parser(" in (REPOSITORY / f"benchmarks/{name}.py").read_text()}
    assert set(NAMES) == commands - {"report"}
    make = (REPOSITORY / "Makefile").read_text(encoding="utf-8")
    assert set(re.findall(r"\$\(BENCH\)\.(\w+)", make)) == set(NAMES) - {"growth"}
