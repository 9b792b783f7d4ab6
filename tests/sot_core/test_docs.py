"""docs/heads.md: its examples run, its tables list what there is."""

import dataclasses
import re

import pytest
import torch

from sot_core import ClassificationHead, HeadConfig
from sot_core.build import FUSIONS, NORMALIZATIONS, POOLINGS
from tests.support import REPOSITORY

TEXT = (REPOSITORY / "docs" / "heads.md").read_text(encoding="utf-8")


def test_the_examples_run():
    names = {}
    for block in re.findall(r"^```python\n(.*?)^```", TEXT, flags=re.MULTILINE | re.DOTALL):
        exec(block, names)
    assert names["logits"].shape == (2, 1000)


def test_the_table_of_options_is_complete():
    section = TEXT[TEXT.index("## Names and options") :]
    cells = [[cell.strip(" `") for cell in line.split("|")] for line in section.splitlines() if line.startswith("| `")]
    rows = {name: default for _, name, default, *_ in cells}
    for field in dataclasses.fields(HeadConfig):
        assert field.name in rows
        assert rows[field.name] == ("" if field.default is dataclasses.MISSING else str(field.default))


def test_every_name_is_described():
    for name in (*POOLINGS, *NORMALIZATIONS, *FUSIONS):
        assert f"`{name}`" in TEXT, name


def test_the_numbers_of_parameters():
    section = TEXT[TEXT.index("Parameters at the defaults") : TEXT.index("### Normalisations around")]
    rows = [[cell.strip(" `") for cell in line.split("|")[1:5]] for line in section.splitlines()[4:] if line]
    assert {name for name, *_ in rows} == {*POOLINGS, "attention`, `attention_mlp"}
    for name, *numbers in rows:
        pooling, *options = name.split("`, `")
        head = ClassificationHead(HeadConfig(768, 10, pooling, "words", **dict.fromkeys(options, True)))
        counts = (sum(parameter.numel() for parameter in module.parameters()) for module in (head.pool, head))
        assert [int(number) for number in numbers] == [head.pool.out_dim, *counts], name


@pytest.mark.parametrize("padding", [0.0, 0.1, 0.4])
def test_the_benchmarks_heads_are_those_of_the_library(padding):
    from benchmarks.head import Contender, Shape, make_heads

    shape = Shape(3, 9, 16, 2, 5, 4)
    steps = {}
    for name, head in make_heads(shape).items():
        contender = Contender(head, shape, torch.device("cpu"), False, padding)
        assert padding == (
            0.0 if contender.mask is None else pytest.approx(contender.mask.float().mean().item(), abs=0.1)
        )
        steps[name] = (contender.step(), contender.tokens.grad)
        assert contender.extra_bytes() > contender.gradient_bytes() > 0
    for name in ("sot_core", "sot_core, plain projection"):
        for actual, expected in zip(steps[name], steps["naive"], strict=True):
            torch.testing.assert_close(actual, expected, rtol=1e-3, atol=1e-4)
    assert isinstance(make_heads(shape)["sot_core"], ClassificationHead)
