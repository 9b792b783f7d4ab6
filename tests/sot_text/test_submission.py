import pytest

from sot_base.errors import UsageError
from sot_text.glue import custom_task, get_task
from sot_text.submission import submission_indices, submission_name, write_submission
from sot_text.tsv import TsvTable


def test_label_names(tmp_path):
    write_submission(tmp_path / "RTE.tsv", get_task("RTE"), ["7", "9"], ["Not_entailment", "entailment"])
    assert (tmp_path / "RTE.tsv").read_text() == "index\tprediction\n7\tnot_entailment\n9\tentailment\n"


def test_lists_of_labels(tmp_path):
    task = custom_task(["a"], "b", ["x", "y, z"], multi_label=True)
    write_submission(tmp_path / "own.tsv", task, ["7", "8", "9"], [("X", "y, z"), (), ("x",)])
    assert (tmp_path / "own.tsv").read_text() == 'index\tprediction\n7\tx,"y, z"\n8\t\n9\tx\n'


@pytest.mark.parametrize("column", ["index", "id"])
@pytest.mark.parametrize("ids", [["rev-1", "rev-2"], ["0", "0"], ["1", ""]])
def test_own_data_keep_their_ids(column, ids):
    table = TsvTable("test.tsv", {"text": ["a", "b"], column: ids}, [2, 3], [])
    assert submission_indices(table, custom_task(["text"], "label")) == ids
    with pytest.raises(UsageError, match=f"(is repeated|is not a number): test.tsv line [23], column '{column}'"):
        submission_indices(table, get_task("RTE"))


def test_rows_without_an_id_are_counted():
    table = TsvTable("test.tsv", {"text": ["a", "b"]}, [2, 3], [])
    assert submission_indices(table, get_task("RTE")) == ["0", "1"]


def test_numbers_stay_in_the_tasks_range(tmp_path):
    write_submission(tmp_path / "STS-B.tsv", get_task("STS-B"), "012", [5.3, -0.1, 2.84])
    assert (tmp_path / "STS-B.tsv").read_text().split()[2:] == ["0", "5.000", "1", "0.000", "2", "2.840"]
    write_submission(tmp_path / "own.tsv", custom_task(["a"], "b", regression=True), ["4"], [-7.25])
    assert (tmp_path / "own.tsv").read_text().split()[2:] == ["4", "-7.250"]


def test_names_of_the_files():
    names = [submission_name(get_task("MNLI"), f"test_{part}.tsv") for part in ("matched", "mismatched")]
    assert names == ["MNLI-m.tsv", "MNLI-mm.tsv"]
    assert submission_name(get_task("sst2"), "test.tsv") == "SST-2.tsv"
    with pytest.raises(UsageError, match=r"neither matched nor mismatched by its name: test\.tsv"):
        submission_name(get_task("MNLI"), "test.tsv")


def test_nothing_is_written_for_a_mistake(tmp_path):
    with pytest.raises(ValueError, match="argument 2 is shorter"):
        write_submission(tmp_path / "RTE.tsv", get_task("RTE"), ["0", "1"], ["entailment"])
    assert list(tmp_path.iterdir()) == []
