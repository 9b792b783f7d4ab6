import dataclasses

import pytest

from sot_text.glue import custom_task, get_task
from sot_text.submission import submission_name, write_submission


def test_label_names(tmp_path):
    write_submission(tmp_path / "RTE.tsv", get_task("RTE"), [1, 0], [0, 1])
    assert (tmp_path / "RTE.tsv").read_text() == "index\tprediction\n0\tnot_entailment\n1\tentailment\n"


def test_numbers_stay_in_the_tasks_range(tmp_path):
    write_submission(tmp_path / "STS-B.tsv", get_task("STS-B"), [5.3, -0.1, 2.84], range(3))
    assert (tmp_path / "STS-B.tsv").read_text().split()[2:] == ["0", "5.000", "1", "0.000", "2", "2.840"]
    write_submission(tmp_path / "own.tsv", custom_task(["a"], "b", regression=True), [-7.25], [4])
    assert (tmp_path / "own.tsv").read_text().split()[2:] == ["4", "-7.250"]


def test_names_of_the_files():
    names = {submission_name(get_task("MNLI"), split) for split in ("test", "test1")}
    assert names == {"MNLI-m.tsv", "MNLI-mm.tsv"}
    assert submission_name(get_task("sst2"), "test") == "SST-2.tsv"


def test_nothing_is_written_for_a_mistake(tmp_path):
    task = dataclasses.replace(get_task("RTE"), labels=("a", "b"))
    with pytest.raises(ValueError, match="argument 2 is longer"):
        write_submission(tmp_path / "RTE.tsv", task, [0, 1], [0])
    assert list(tmp_path.iterdir()) == []
