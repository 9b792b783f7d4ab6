"""The sweep: what it searches, what it writes, and that a killed one goes on. One test trains for real."""

import csv
import itertools
import json
import re
import shlex
import statistics

import optuna
import pytest
import torch
from filelock import FileLock

from sot_base.errors import UsageError
from sot_fairseq import sweep
from sot_fairseq.runs.search_space import command_words, parse_parameter
from tests.sot_fairseq.conftest import command

METRIC = ["--best-checkpoint-metric", "accuracy", "--maximize-best-checkpoint-metric"]


@pytest.fixture
def trainings(monkeypatch):
    """In place of fairseq-train: writes a checkpoint whose metric is known; the list of commands it got."""
    commands, fails_at = [], {}

    def train(children, words, log):
        options = dict(itertools.pairwise(words))
        commands.append(options)
        if len(commands) in fails_at:
            log.write(f"{fails_at[len(commands)]}error: the training diverged\n")
            return 2
        if options.get("--lr") == "killed":
            raise KeyboardInterrupt
        value = -((float(options["--lr"]) - 3) ** 2) + 0.1 * int(options["--seed"])
        state = {"model": {}, "args": None, "cfg": {}, "extra_state": {"best": value}}
        torch.save(state, f"{options['--save-dir']}/checkpoint_last.pt")
        torch.save(state, f"{options['--save-dir']}/checkpoint_best.pt")
        return 0

    monkeypatch.setattr(sweep, "run_training", train)
    train.fails_at = fails_at
    return commands


def rows(folder):
    with (folder / "runs.csv").open() as stream:
        return list(csv.DictReader(stream))


def test_a_grid_trains_every_setting_with_every_seed(trainings, tmp_path, capsys):
    words = ["--param", "lr=1,3,5", "--param", "use-it=true,false", "--seeds", "1", "2", "--sampler", "grid"]
    sweep.main([str(tmp_path / "s"), *words, "--trials", "10", "--", "DATA", "--seed", "9", *METRIC])
    assert len(trainings) == 12
    assert {options["--seed"] for options in trainings} == {"1", "2"}
    assert sum("--use-it" in options for options in trainings) == 6
    found = rows(tmp_path / "s")
    assert len(found) == 12
    assert set(found[0]) == {"trial", "seed", "lr", "use-it", "accuracy"}
    best = [float(row["accuracy"]) for row in found if row["lr"] == "3" and row["use-it"] == "true"]
    assert best == pytest.approx([0.1, 0.2])
    output = capsys.readouterr().out
    first = next(line for line in output.splitlines() if line.startswith("| 1 "))
    assert "--lr 3" in first
    cells = [cell.strip() for cell in first.split("|")[3:8]]
    assert cells == ["0.15", f"{statistics.stdev(best):.2f}", "2", "0.10", "0.20"]
    assert "6 settings tried" in output
    assert not list((tmp_path / "s").rglob("*.pt"))


def test_tpe_finds_the_top_of_a_range_and_goes_on_where_it_stopped(trainings, tmp_path, capsys):
    words = [str(tmp_path / "s"), "--param", "lr=0.1..10:log", "--seeds", "1", "--", "DATA", *METRIC]
    sweep.main([words[0], "--trials", "4", *words[1:]])
    assert len(trainings) == 4
    sweep.main([words[0], "--trials", "25", *words[1:]])
    assert len(trainings) == 25
    assert all(0.1 <= float(options["--lr"]) <= 10 for options in trainings)
    best = max(float(row["accuracy"]) for row in rows(tmp_path / "s"))
    assert best > 0
    sweep.main([words[0], "--trials", "25", *words[1:]])  # done already: nothing is trained, the table is shown again
    assert len(trainings) == 25
    assert capsys.readouterr().out.count("25 settings tried") == 2


def test_a_killed_sweep_repeats_only_what_was_not_done(trainings, tmp_path):
    words = [
        "--param",
        "lr=killed,3,4",
        "--seeds",
        "1",
        "2",
        "--sampler",
        "grid",
        "--trials",
        "3",
        "--",
        "DATA",
        *METRIC,
    ]
    for _ in range(4):  # the grid's order is drawn; a killed setting is the first one after a restart
        with pytest.raises(KeyboardInterrupt):
            sweep.main([str(tmp_path / "s"), *words])
    done = [(options["--lr"], options["--seed"]) for options in trainings if options["--lr"] != "killed"]
    assert len(done) == len(set(done))
    assert [options["--lr"] for options in trainings].count("killed") == 4


def test_a_grid_goes_on_after_a_kill_and_ends(trainings, tmp_path, monkeypatch, capsys):
    words = [str(tmp_path / "s"), "--param", "lr=2,3,4", "--seeds", "1", "--sampler", "grid", "--", "DATA", *METRIC]
    stock, left = sweep.run_training, [1]

    def killed_once(children, command, log):
        if len(trainings) == 1 and left:
            left.pop()
            raise KeyboardInterrupt
        return stock(children, command, log)

    monkeypatch.setattr(sweep, "run_training", killed_once)
    with pytest.raises(KeyboardInterrupt):
        sweep.main(words)
    for _ in range(2):
        sweep.main(words)
        assert sorted(options["--lr"] for options in trainings) == ["2", "3", "4"]
        assert "3 settings tried" in capsys.readouterr().out


@pytest.mark.parametrize("sampler", ["grid", "tpe"])
@pytest.mark.parametrize("step", [1, 2])
def test_a_setting_that_diverges_is_left_out(trainings, tmp_path, capsys, sampler, step):
    words = ["--param", "lr=3,4,5", "--seeds", "1", "--sampler", sampler, "--trials", "3", "--", "DATA", *METRIC]
    sweep.run_training.fails_at[step] = "begin training epoch 1\n"
    sweep.main([str(tmp_path / "s"), *words])
    captured = capsys.readouterr()
    assert captured.err.startswith(f"trial {step - 1} is left out: fairseq-train failed (the training diverged): ")
    assert "Traceback" not in captured.err
    assert [row["trial"] for row in rows(tmp_path / "s")] == [str(n) for n in range(3) if n != step - 1]
    before = len(trainings)
    sweep.main([str(tmp_path / "s"), *words])  # nothing is left to do
    assert len(trainings) == before


def test_all_settings_diverge(trainings, tmp_path, capsys):
    words = ["--param", "lr=3,4", "--seeds", "1", "--sampler", "grid", "--", "DATA", *METRIC]
    sweep.run_training.fails_at |= dict.fromkeys((1, 2), "begin training epoch 1\n")
    with pytest.raises(
        UsageError, match=r"all trials failed, the last one: fairseq-train failed \(the training diverged"
    ):
        sweep.main([str(tmp_path / "s"), *words])
    assert capsys.readouterr().err.count("is left out") == 2


def test_a_command_that_does_not_start_ends_the_sweep_and_is_tried_again(trainings, tmp_path):
    words = [str(tmp_path / "s"), "--param", "lr=3,4", "--seeds", "1", "--sampler", "grid", "--", "DATA", *METRIC]
    sweep.run_training.fails_at[1] = ""
    with pytest.raises(UsageError, match=r"fairseq-train failed \(the training diverged\): .*train.log"):
        sweep.main(words)
    sweep.main(words)
    assert sorted(row["lr"] for row in rows(tmp_path / "s")) == ["3", "4"]


def test_a_command_file_is_read_without_what_the_sweep_sets(trainings, tmp_path):
    file = tmp_path / "command.txt"
    file.write_text(shlex.join(["fairseq-train", "a folder", "--seed", "7", "--save-dir", "x y", "--lr", "9", *METRIC]))
    sweep.main([str(tmp_path / "s"), "--command", str(file), "--param", "lr=2,3", "--seeds", "4", "--trials", "1"])
    settings = json.loads((tmp_path / "s" / "sweep.json").read_text())
    assert settings["words"] == ["a folder", "--lr", "9", *METRIC]
    assert trainings[0]["--seed"] == "4"
    assert trainings[0]["--lr"] in ("2", "3")


def test_it_trains_for_real(data, tmp_path, capsys):
    words = command(data, "unused", "--max-update", "2", *METRIC)
    sweep.main([str(tmp_path / "s"), "--param", "head-lr-scale=1,5", "--seeds", "1", "--trials", "1", "--", *words])
    (row,) = rows(tmp_path / "s")
    assert 0 < float(row["accuracy"]) <= 100
    (log,) = (tmp_path / "s").rglob("train.log")
    (logged,) = re.findall(r"valid on 'valid' subset .*accuracy ([\d.]+)", log.read_text())
    assert float(row["accuracy"]) == pytest.approx(float(logged), rel=1e-4)
    assert not list((tmp_path / "s").rglob("*.pt"))


@pytest.mark.parametrize(
    "text, expected",
    [
        ("lr=1e-5..1e-3:log", optuna.distributions.FloatDistribution(1e-5, 1e-3, log=True)),
        ("--head_dropout=0.0..0.8", optuna.distributions.FloatDistribution(0.0, 0.8)),
        ("mgcrp-q=8..48:int", optuna.distributions.IntDistribution(8, 48)),
        ("head-pooling=mgcrp, gap", optuna.distributions.CategoricalDistribution(("mgcrp", "gap"))),
    ],
)
def test_parameters_are_read(text, expected):
    parameter = parse_parameter(text)
    study = optuna.create_study(sampler=optuna.samplers.RandomSampler(seed=0))
    trial = study.ask()
    value = parameter.suggest(trial)
    assert trial.distributions == {parameter.name: expected}
    assert parameter.name in ("lr", "head-dropout", "mgcrp-q", "head-pooling")
    assert command_words({parameter.name: value})[0] == f"--{parameter.name}"


@pytest.mark.parametrize(
    "words, message",
    [
        (["--param", "lr"], "not a parameter: --param lr"),
        (["--param", "lr=1,1"], "an empty or a repeated value: --param lr=1,1"),
        (["--param", "lr=1,"], "an empty or a repeated value"),
        (["--param", "lr=a..b"], "not two numbers: --param lr=a..b"),
        (["--param", "lr=3..1"], "not a range: --param lr=3..1"),
        (["--param", "lr=0..1:log"], "not a range: --param lr=0..1:log"),
        (["--param", "q=0.5..2:int"], "not whole numbers"),
        (["--param", "q=1..2:cubic"], "unknown scale 'cubic'"),
        (["--param", "seed=1,2"], "--param seed: the command line"),
        (["--param", "lr=1,2", "--param", "lr=3,4"], "--param lr: the command line; name each option once"),
        (["--param", "lr=1..2", "--sampler", "grid"], "a range has no grid: --param lr"),
        (["--param", "lr=1,2", "--trials", "0"], "--trials 0"),
    ],
)
def test_mistakes_are_named(trainings, tmp_path, words, message):
    with pytest.raises(UsageError, match=message.replace("(", r"\(")):
        sweep.main([str(tmp_path / "s"), *words, "--", "DATA", *METRIC])
    assert not trainings


def test_a_command_that_cannot_be_searched_is_refused(trainings, tmp_path):
    words = [str(tmp_path / "s"), "--param", "lr=1,2"]
    for training, message in (
        ([], "expected one training command"),
        (["--", "DATA"], "no --best-checkpoint-metric"),
        (["--", "DATA", "--no-save", *METRIC], "--no-save"),
    ):
        with pytest.raises(UsageError, match=message):
            sweep.main([*words, *training])
    sweep.main([*words, "--trials", "1", "--seeds", "1", "--", "DATA", *METRIC])
    with pytest.raises(UsageError, match="the folder holds another sweep"):
        sweep.main([*words, "--trials", "1", "--seeds", "1", "2", "--", "DATA", *METRIC])


def test_two_processes_do_not_search_in_one_folder(trainings, tmp_path):
    words = [str(tmp_path / "s"), "--param", "lr=1,2", "--trials", "1", "--seeds", "1"]
    metric = ["--best-checkpoint-metric=accuracy", METRIC[-1]]
    (tmp_path / "s").mkdir()
    with FileLock(tmp_path / "s" / ".lock"), pytest.raises(UsageError, match=r"another process runs this sweep: .*/s;"):
        sweep.main([*words, "--", "DATA", *metric])
    assert not trainings
    sweep.main([*words, "--", "DATA", *metric])
    assert len(trainings) == 1
