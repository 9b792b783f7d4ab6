"""What the tests share: where the golden numbers and the real data are, and how weights are filled."""

import importlib.util
import json
import os
from functools import cache
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest
import torch

REPOSITORY = Path(__file__).resolve().parents[1]
SHARED = Path(os.environ.get("SOT_SHARED", REPOSITORY.parent / "shared")).resolve()
GOLDEN = REPOSITORY / "tests" / "golden"


def need_shared(*parts: str) -> Path:
    """A path among the shared reference files and data; the test is skipped where they are absent."""
    path = SHARED.joinpath(*parts)
    if not path.exists():
        pytest.skip(f"{path} is absent: SOT_SHARED names the folder of reference files and data")
    return path


def golden_file(name: str) -> Path:
    """A golden file: the small ones lie in tests/golden, the rest among the shared reference files."""
    local = GOLDEN / name
    return local if local.exists() else need_shared("reference", name)


@cache
def golden_arrays(name: str) -> dict[str, torch.Tensor]:
    with np.load(golden_file(name)) as arrays:
        return {key: torch.from_numpy(arrays[key]) for key in arrays.files}


@cache
def golden_index(name: str) -> dict:
    """What head/index.json says of one file."""
    local = json.loads((GOLDEN / "head" / "index.json").read_text())["files"]
    if name in local:
        return local[name]
    return json.loads(need_shared("reference", "head", "index.json").read_text())["files"][name]


@cache
def reference_fill() -> ModuleType:
    """The module that fills weights by the rules of the golden files."""
    spec = importlib.util.spec_from_file_location("reference_fill", need_shared("reference", "fill.py"))
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
