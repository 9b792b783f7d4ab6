"""``python -m sot_hf.run_glue`` starts without what a training does not need."""

import subprocess
import sys

from tests.support import REPOSITORY

PROGRAM = """
import sys
from sot_hf.run_glue import main
main(sys.argv[1:])
print("imported", *sorted({"scipy", "sklearn"} & set(sys.modules)))
from transformers.loss.loss_for_object_detection import linear_sum_assignment
print("pairs", *linear_sum_assignment([[2, 1], [1, 2]])[1])
"""


def test_a_training_imports_neither_scipy_nor_scikit_learn(bert_folder, rte, tmp_path):
    words = ["--model_name_or_path", bert_folder, "--data_dir", rte, "--task_name", "RTE", "--output_dir", tmp_path]
    words += ["--do_train", "--do_eval", "--max_steps", "1", "--use_cpu"]
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, *map(str, words)], cwd=REPOSITORY, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr[-2000:]
    assert done.stdout.splitlines()[-2:] == ["imported", "pairs 1 0"]
