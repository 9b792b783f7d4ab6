"""``python -m benchmarks.fine_tuning``: every arm on a tiny encoder, continued files, tables, what is refused."""

import json
import random
import re
import shlex

import numpy as np
import pytest
import torch

from benchmarks.fine_tuning import __main__ as fine_tuning
from benchmarks.fine_tuning.arms import ARMS, PRIMARY, SECONDARY
from benchmarks.fine_tuning.encoder_states import effective_rank, row_means, words_of
from benchmarks.fine_tuning.report import answer, arms_table, compare_arms, states_tables, variants_table
from benchmarks.fine_tuning.results_file import Results, Run, Step, read_results
from benchmarks.fine_tuning.trainings import FineTuning
from benchmarks.statistics import PairedT, holm, paired_t
from sot_base.errors import UsageError, run_main
from sot_hf import SoTForSequenceClassification, run_glue
from sot_hf.arguments import parse_arguments
from sot_hf.batching import PaddingCollator
from sot_probe.states import TokenStates
from tests.sot_hf.conftest import bert_folder, sentence  # noqa: F401  the fixture
from tests.support import REPOSITORY


@pytest.fixture(scope="session")
def cola(tmp_path_factory):
    """CoLA's files: a sentence is acceptable if it has no "not"."""
    folder, rng = tmp_path_factory.mktemp("cola"), random.Random(7)
    for name, count in (("train", 48), ("dev", 20)):
        texts = [sentence(rng) for _ in range(count)]
        rows = [f"x\t{int('not' not in text.split())}\t\t{text}\n" for text in texts]
        (folder / f"{name}.tsv").write_text("".join(rows))
    return folder


@pytest.fixture
def run(bert_folder, cola, tmp_path):  # noqa: F811
    """Runs the command line on the sentences."""

    def run_command(*words, out="out.json", labels=32):
        words = [*words, "--data-dir", cola, "--encoder", bert_folder, "--output", tmp_path / out]
        words += ["--labels", labels, "--batch-size", "16", "--epochs", "1", "--learning-rate", "1e-3"]
        fine_tuning.main([str(word) for word in words])
        return read_results(tmp_path / out)

    return run_command


def without_times(results):
    for runs in results.arms.values():
        for own in runs.values():
            assert own.seconds > 0
            own.seconds = 0.0
    return results


@pytest.mark.slow
def test_every_arm_trains_what_its_options_say(run, monkeypatch, capsys):
    monkeypatch.setitem(ARMS, "cls-128", ARMS["cls-128"]._replace(labels=8))
    monkeypatch.setitem(ARMS, "mgcrp-128", ARMS["mgcrp-128"]._replace(labels=8))
    results = run("--seeds", "1")
    assert list(results.arms) == list(ARMS)
    runs = {name: own["1"] for name, own in results.arms.items()}
    assert {own.updates for name, own in runs.items() if not name.endswith(("128", "512"))} == {2}
    assert runs["cls-128"].updates == runs["mgcrp-128"].updates == 4  # 4 epochs of 8 rows
    assert runs["cls-top1"].parameters < runs["cls-top2"].parameters < runs["cls"].parameters < runs["mgcrp"].parameters
    assert "--learning_rate 0.0003 --head_lr_scale 3.33333" in runs["mgcrp-probed"].words
    assert "--layers 1 -1 --layer_pair x_y" in runs["mgcrp-x_y"].words
    distinct = {name: own.scores for name, own in runs.items()}
    assert len({tuple(scores) for scores in distinct.values()}) >= len(ARMS) - 2  # 512 of 32 labels are all of them
    assert "| mgcrp-x_y" in capsys.readouterr().out


@pytest.mark.parametrize("arm", ["cls-top1", "mgcrp-words_cls"])
def test_an_arm_is_a_command_of_run_glue(bert_folder, cola, tmp_path, arm):  # noqa: F811
    words = ["--data-dir", cola, "--encoder", bert_folder, "--output", tmp_path / "out.json", "--precision", "fp32"]
    args = fine_tuning.fine_tuning_parser().parse_args([*map(str, words), "--labels", "48", "--epochs", "3"])
    bench = FineTuning(args)
    own = bench.train(ARMS[arm], 1)
    files = ["--model_name_or_path", bert_folder, "--task_name", "CoLA", "--data_dir", cola, "--save_strategy", "no"]
    run_glue.main([str(word) for word in (*files, "--output_dir", tmp_path / "run", *own.words.split())])
    model = SoTForSequenceClassification.from_pretrained(tmp_path / "run").eval()
    rows = [{"input_ids": row["input_ids"]} for row in bench.test.encodings]
    with torch.no_grad():
        logits = [model(**PaddingCollator(bench.tokenizer, 40)([row])).logits[0] for row in rows]
    assert [float(one - zero) for zero, one in logits] == pytest.approx(own.scores, abs=1e-4)


def test_an_interrupted_measurement_goes_on_with_the_same_result(run, monkeypatch):
    words = ("--arms", "cls", "mgcrp-probed", "--seeds", "1", "2")
    whole = without_times(run(*words))
    train = FineTuning.train

    def interrupted(self, arm, seed, *others):
        if seed == 2:
            raise KeyboardInterrupt
        return train(self, arm, seed, *others)

    monkeypatch.setattr(FineTuning, "train", interrupted)
    with pytest.raises(KeyboardInterrupt):
        run(*words, out="other.json")
    monkeypatch.setattr(FineTuning, "train", train)
    assert without_times(run(*words, out="other.json")) == whole
    monkeypatch.setattr(FineTuning, "train", lambda *_: pytest.fail("an arm was trained again"))
    assert without_times(run(*words)) == whole


def test_an_encoder_that_is_followed_is_trained_alike(run, capsys):
    alone = run("--arms", "cls", "--seeds", "1")
    followed = run("--arms", "cls", "--seeds", "1", "--follow", "cls")
    own = followed.arms["cls"]["1"]
    assert own.scores == alone.arms["cls"]["1"].scores
    assert [step.epoch for step in own.steps] == [0, 1]
    assert own.steps[0].effective_rank != own.steps[1].effective_rank
    assert 1 < own.steps[1].rank_within < 16
    assert 50 <= own.steps[1].direction_auc <= 100
    assert set(own.steps[0].probes) == {"cls", "gap-words", "mgcrp-words"}
    assert "| tuned with | epochs | effective rank |" in capsys.readouterr().out


def test_held_out_rows_are_not_drawn(run, capsys):
    results = run("--arms", "cls", "--seeds", "0", "--held-out")
    assert len(results.targets) == 16  # 48 - 32
    with pytest.raises(UsageError, match="no row is left of 48: --held-out; give fewer --labels"):
        run("--arms", "cls", "--held-out", labels=48, out="other.json")


def results_of(**values):
    def run_of(value):
        return Run("", 1, 1, 1.0, value, 50 + value, [0.5], [])

    arms = {arm.replace("__", "-"): {str(n): run_of(v) for n, v in enumerate(own, 1)} for arm, own in values.items()}
    return Results("mcc", {}, [1], arms)


def test_arms_are_compared_over_the_seeds_that_both_have():
    results = results_of(cls=[1.0, 2.0, 3.0, 9.0], mgcrp=[3.0, 3.0, 4.5], mgcrp__sum_loss=[1.0, 2.5, 3.0])
    found = compare_arms(results, PRIMARY)
    first, second = (paired_t(own, [1.0, 2.0, 3.0]) for own in ([3.0, 3.0, 4.5], [1.0, 2.5, 3.0]))
    assert first.difference == pytest.approx(1.5)
    assert [found["mgcrp"][0], found["mgcrp-sum_loss"][0]] == [first, second]
    assert [found["mgcrp"][1], found["mgcrp-sum_loss"][1]] == pytest.approx(holm([first.p, second.p]))
    assert found["mgcrp"][2] == 3
    assert re.search(r"^\| cls +\| 3.75 +\| 3.59 +\| 53.75 +\| 4 ", arms_table(results), flags=re.MULTILINE)
    assert "+1.50 [+0.26, +2.74]" in arms_table(results)
    assert list(compare_arms(results, SECONDARY)) == ["mgcrp-sum_loss"]
    assert "| mgcrp-sum_loss | mgcrp" in variants_table(results)


@pytest.mark.parametrize(
    "test, p, expected",
    [
        (PairedT(4.0, 1.0, 7.0, 0.01), 0.04, "yes"),
        (PairedT(-4.0, -7.0, -1.0, 0.01), 0.04, "harm"),
        (PairedT(0.5, -1.0, 2.0, 0.4), 0.8, "no"),
        (PairedT(1.5, -1.0, 4.0, 0.1), 0.3, "open"),
        (PairedT(1.0, float("nan"), float("nan"), float("nan")), float("nan"), "open"),
    ],
)
def test_the_answer_follows_the_rule_of_the_plan(test, p, expected):
    assert answer(test, p) == expected


def test_the_gap_of_followed_encoders():
    results = results_of(cls=[1.0, 2.0])
    for number, shift in (("1", 0.0), ("2", 1.0)):
        before = Step(0, 200.0, 0.05, {"cls": 20.0, "gap-words": 30.0, "mgcrp-words": 40.0 + shift})
        after = Step(2, 100.0, 0.2, {"cls": 60.0, "gap-words": 60.0, "mgcrp-words": 62.0 + shift})
        results.arms["cls"][number].steps = [before, after]
    text = states_tables(results)
    assert "| +20.50 [+14.15, +26.85] | 2 " in text
    assert "| gap after tuning - half of the gap before | -7.75 [-10.93, -4.57]" in text
    assert "| cls after tuning - mgcrp-words before     | +19.50 [+13.15, +25.85]" in text
    assert "| effective rank after tuning - before      | -100.00 [-100.00, -100.00]" in text
    assert states_tables(results_of(cls=[1.0])) == ""


def test_effective_rank():
    rows = torch.eye(4).repeat(2, 1) * torch.tensor([[1.0]] * 4 + [[-1.0]] * 4)
    assert effective_rank(rows + 3.0)[:2] == pytest.approx((4.0, 0.25))
    line = torch.linspace(-1, 1, 9).unsqueeze(1) * torch.tensor([[1.0, 2.0, 0.0]])
    rank, share, direction = effective_rank(line)
    assert (rank, share) == pytest.approx((1.0, 1.0), abs=1e-6)
    assert direction.abs().tolist() == pytest.approx([0.2**0.5, 0.8**0.5, 0.0])


def test_words_are_all_tokens_but_the_first_of_a_row():
    states = TokenStates.from_rows([[torch.full((3, 2), 1.0)], [torch.tensor([[0.0, 0.0], [2.0, 2.0]])]])
    states.layers[0][states.starts] = -1.0
    words, rows = words_of(states)
    assert words[:, 0].tolist() == [1.0, 1.0, 2.0]
    assert rows.tolist() == [0, 0, 1]
    assert row_means(words, rows)[:, 0].tolist() == [1.0, 2.0]


@pytest.mark.parametrize(
    "words, message",
    [
        (["--arms", "cls", "gcp"], "error: no such arm: --arms gcp; use cls, mgcrp, "),
        (["--arms", "cls", "--follow", "words"], "error: no such arm: --follow words; use "),
        ([], "error: cannot read none.json "),
        (["--data-dir", "nowhere"], "error: no train.tsv, dev.tsv"),
        (["--labels", "0"], "must be a positive whole number, got 0"),
        (["--seeds", "-1"], "must be a whole number from 0, got -1"),
        (["--learning-rate", "0"], "must be a positive number, got 0"),
    ],
)
def test_mistakes_have_exit_status_2(tmp_path, monkeypatch, capsys, words, message):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SystemExit) as stopped:
        run_main(lambda: fine_tuning.main([*words, "--output", "none.json"]))
    assert stopped.value.code == 2
    assert message in capsys.readouterr().err


def test_other_settings_and_damaged_files_are_refused(run, tmp_path):
    run("--arms", "cls", "--seeds", "1")
    with pytest.raises(UsageError, match=r"labels was 32, now 16: .*out.json; give the same options, or another"):
        run("--arms", "cls", "--seeds", "1", labels=16)
    text = (tmp_path / "out.json").read_text()
    values = json.loads(text)
    values["arms"]["cls"]["1"]["scores"].pop()
    (tmp_path / "out.json").write_text(json.dumps(values))
    with pytest.raises(UsageError, match=r"cls, seed 1 has 19 scores of 20: .*out.json; remove it"):
        run("--arms", "cls", "--seeds", "1")
    (tmp_path / "out.json").write_text(text[:-9])
    with pytest.raises(UsageError, match="not a JSON file"):
        run("--arms", "cls", "--seeds", "1")


def test_a_picture(run, tmp_path):
    run("--arms", "cls", "mgcrp", "--seeds", "1", "2", "--picture", tmp_path / "differences.svg")
    assert "<svg" in (tmp_path / "differences.svg").read_text()
    with pytest.raises(UsageError, match="nothing to draw: --picture"):
        run("--arms", "cls", "--seeds", "1", "--picture", tmp_path / "none.svg", out="other.json")


def test_the_plan_and_the_code_have_the_same_arms_and_comparisons():
    text = (REPOSITORY / "docs" / "fine_tuning.md").read_text(encoding="utf-8")
    plan = text[text.index("### Arms") : text.index("### Rank")]
    table = plan[: plan.index("### Metric")]
    assert set(re.findall(r"`([a-z]+(?:-[\w]+)?)`", table)) - {"sum_fc"} == set(ARMS)
    assert re.findall(r"^\d+\. `(\S+)` - `(\S+)`$", plan, flags=re.MULTILINE) == list(PRIMARY.items())
    for arm in ARMS.values():
        words = [word.replace("MIDDLE", "3") for word in arm.words]
        parse_arguments(["--model_name_or_path", "x", "--data_dir", "x", "--output_dir", "x", "--do_train", *words])


def test_the_commands_of_the_documentation_are_understood():
    text = (REPOSITORY / "docs" / "fine_tuning.md").read_text(encoding="utf-8").replace("\\\n", " ")
    commands = re.findall(r"^python -m benchmarks.fine_tuning (.*)$", text, flags=re.MULTILINE)
    for command in commands:
        assert set(fine_tuning.fine_tuning_parser().parse_args(shlex.split(command)).arms) <= set(ARMS)
    assert np.all([("--output" in command) for command in commands])
