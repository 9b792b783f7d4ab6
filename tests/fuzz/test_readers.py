"""A few damaged inputs for every reader; ``make fuzz`` gives them 1,500 each."""

import logging

import pytest

from tests.fuzz.engine import run
from tests.fuzz.readers import READERS

INPUTS = 6


@pytest.fixture
def silent():
    logging.disable(logging.CRITICAL)
    yield
    logging.disable(logging.NOTSET)


@pytest.mark.slow
@pytest.mark.usefixtures("silent")
@pytest.mark.parametrize("reader", READERS, ids=lambda reader: reader.name)
def test_a_damaged_file_is_read_or_refused_in_one_line(reader, tmp_path):
    report = run(reader, tmp_path, INPUTS, seed=0)
    assert report.findings == []
    assert report.inputs == report.taken + report.refused == INPUTS
