"""``python -m sot_fairseq.train``: fairseq-train without what a training does not need."""

import os
import subprocess
import sys
import textwrap

import pytest

from sot_base.safe_checkpoint import read_checkpoint
from sot_fairseq.train import _user_dir
from tests.sot_fairseq.conftest import command, run_train
from tests.sot_fairseq.killed_training import contents, differences
from tests.support import REPOSITORY

PROGRAM = """
import sys
words, folders = sys.argv[1:-2], sys.argv[-2:]
from sot_base.forked import ForkedProcess
from sot_fairseq import train
status = ForkedProcess(lambda: train.main([*words, "--save-dir", folders[0]])).wait()
train.main([*words, "--save-dir", folders[1]])
print("fork", status)
print("imported", *sorted({"scipy", "sklearn", "torch._dynamo"} & set(sys.modules)))
from fairseq.criterions.sentence_prediction import acc_and_f1, pearson_and_spearman
from fairseq.tasks.audio_classification import sklearn_metrics
import numpy as np
left, right = np.array([0, 1, 1, 0]), np.array([0, 1, 0, 0])
print("stock", acc_and_f1(left, right)["f1"], pearson_and_spearman(left, right)["corr"] > 0.5)
print("task", sklearn_metrics.accuracy_score(left, right))
"""


@pytest.mark.parametrize(
    "words, found",
    [
        ([], None),
        (["data"], None),
        (["--user-dir"], None),
        (["data", "--user-dir", "a"], "a"),
        (["--user-dir", "a", "data", "--user-dir=b"], "b"),
    ],
)
def test_the_folder_of_a_plug_in_is_the_last_one_given(words, found):
    assert _user_dir(words) == found


def run_command(*words, cwd):
    environment = os.environ | {"PYTHONPATH": str(REPOSITORY)}
    return subprocess.run([sys.executable, *words], cwd=cwd, env=environment, capture_output=True, text=True)


def test_a_folder_that_does_not_exist(tmp_path):
    done = run_command("-m", "sot_fairseq.train", "data", "--user-dir", "absent", cwd=tmp_path)
    assert done.returncode == 2
    expected = f"error: no such folder: --user-dir {tmp_path / 'absent'}; give the folder of a plug-in"
    assert done.stderr.splitlines()[-1] == expected


@pytest.mark.parametrize("module", ["sot_fairseq.train", "fairseq_cli.train"])
def test_a_command_line_without_an_architecture(module, tmp_path):
    done = run_command("-m", module, "data", "--user-dir", str(REPOSITORY / "sot_fairseq"), cwd=tmp_path)
    assert done.returncode == 2
    expected = "error: no architecture is named: the command line; give --arch, for instance --arch roberta_base"
    assert done.stderr.splitlines()[-1] == expected


@pytest.mark.parametrize(
    "words, is_torn_down", [(["-m", "sot_fairseq.train", "--help"], False), (["-c", "pass"], True)]
)
def test_the_command_ends_without_the_teardown_of_its_libraries(words, is_torn_down, tmp_path):
    hook = """
        import builtins, sys

        class Kept:
            def __del__(self):
                sys.__stderr__.write("torn down")

        builtins.kept = Kept()
    """
    (tmp_path / "sitecustomize.py").write_text(textwrap.dedent(hook))
    environment = os.environ | {"PYTHONPATH": f"{tmp_path}{os.pathsep}{REPOSITORY}"}
    done = subprocess.run([sys.executable, *words], env=environment, capture_output=True, text=True)
    assert done.returncode == 0
    assert ("--user-dir" in done.stdout) == (not is_torn_down)
    assert ("torn down" in done.stderr) == is_torn_down


@pytest.mark.slow
def test_the_same_bits_without_scikit_learn_and_the_compiler(data, tmp_path):
    words = [word for word in command(data, "-", "--max-update", "3", "--dropout", "0.2") if word != "--user-dir"]
    words.remove(str(REPOSITORY / "sot_fairseq"))  # it is added
    folders = [str(tmp_path / name) for name in ("fork", "process")]
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, *words, *folders], cwd=REPOSITORY, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr[-2000:]
    lines = done.stdout.splitlines()
    assert lines[-4:] == ["fork 0", "imported", f"stock {2 / 3} True", "task 0.75"]
    run_train(data, tmp_path / "stock", "--max-update", "3", "--dropout", "0.2")
    stock = contents(tmp_path / "stock")["checkpoint_last.pt"]
    for folder in folders:
        state = read_checkpoint(f"{folder}/checkpoint_last.pt", lazy=False)
        assert not differences(state["model"], stock["model"])
        assert not differences(state["last_optimizer_state"], stock["last_optimizer_state"])
