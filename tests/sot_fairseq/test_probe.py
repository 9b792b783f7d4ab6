"""Heads trained on cached token states: equal to fairseq's own way, and the command line."""

import json
import random
import re
import shlex
import statistics
import subprocess
import sys

import pytest
import torch
from fairseq.data.data_utils import collate_tokens
from fairseq.optim.lr_scheduler.polynomial_decay_schedule import (
    PolynomialDecayLRSchedule,
    PolynomialDecayLRScheduleConfig,
)

import sot_fairseq
from sot_base.errors import UsageError
from sot_core.build import FUSIONS
from sot_fairseq import encoders, probe
from sot_fairseq.probing.encoding import ProbeTask
from sot_probe.grid import HEAD_NAMES
from sot_probe.layer_head import LayerHead
from sot_probe.objective import Objective, as_targets
from sot_probe.store import open_or_create
from sot_probe.trainee import Candidate, TrainingSettings, lr_factor
from sot_probe.training import Split, predict, train_heads
from tests.sot_fairseq.bert_files import VOCAB, random_bert, save_bert
from tests.sot_fairseq.conftest import run_train, write_rows

WORDS = [word for word in VOCAB if word.isalpha()]
TINY_HEAD = ("--mgcrp-heads", "2", "--mgcrp-q", "4")
SPLITS = {"train": 40, "dev": 16}


def text(rng):
    return " ".join(rng.choice(WORDS) for _ in range(rng.randint(1, 8)))


@pytest.fixture(scope="module")
def glue(tmp_path_factory):
    """SST-2, STS-B and MNLI in GLUE's layout."""
    folder = tmp_path_factory.mktemp("glue dir")
    rng = random.Random(1)
    for split, count in SPLITS.items():
        texts = [text(rng) for _ in range(count)]
        write_rows(
            folder / "SST-2" / f"{split}.tsv",
            ("sentence", "label"),
            [(line, str(int("cat" in line))) for line in texts],
        )
        pairs = [(text(rng), text(rng)) for _ in range(count)]
        rows = [(a, b, f"{5 * len(set(a.split()) & set(b.split())) / 8:.2f}") for a, b in pairs]
        write_rows(folder / "STS-B" / f"{split}.tsv", ("sentence1", "sentence2", "score"), rows)
    for name in ("train", "dev_matched", "dev_mismatched"):
        rows = [(text(rng), text(rng), rng.choice(["entailment", "neutral", "contradiction"])) for _ in range(15)]
        write_rows(folder / "MNLI" / f"{name}.tsv", ("sentence1", "sentence2", "gold_label"), rows)
    return folder


@pytest.fixture(scope="module")
def encoder(tmp_path_factory):
    torch.manual_seed(0)
    return save_bert(tmp_path_factory.mktemp("bert"), random_bert())


@pytest.fixture(scope="module", autouse=True)
def cache(tmp_path_factory):
    """A cache of its own."""
    with pytest.MonkeyPatch.context() as patch:
        folder = tmp_path_factory.mktemp("cache")
        patch.setenv("SOT_CACHE", str(folder))
        yield folder / "token_states"


@pytest.fixture
def run(glue, encoder, tmp_path):
    """Runs the command line, without held-out rows unless told so; returns what is in results.json."""

    def run_probe(*words, task="SST-2", out=tmp_path / "out", which=encoder, status=0):
        data = ("--task", task, "--data-dir", glue) if task else ()
        settings = ("--epochs", "2", "--batch-size", "8", "--held-out", "0", "--save", "none", *TINY_HEAD)
        arguments = ("--encoder", which, *data, "--output-dir", out, "--seeds", "1", *settings, *words)
        assert probe.main([str(argument) for argument in arguments]) == status
        return json.loads((out / "results.json").read_text())

    return run_probe


@pytest.fixture(scope="module")
def probe_task(glue, encoder, cache, tmp_path_factory):
    out = tmp_path_factory.mktemp("task")
    words = ("--encoder", encoder, "--task", "SST-2", "--data-dir", glue, "--output-dir", out, "--heads", "cls")
    probe.main([str(word) for word in (*words, "--seeds", "1", "--epochs", "1")])
    return ProbeTask(encoders.find(str(encoder)), out / "data")


def untimed(results):
    for head in results["heads"].values():
        for seed in head["seeds"].values():
            assert seed.pop("seconds") > 0
            seed.pop("command")
    return results


def train_split(task, store):
    return Split(store.splits["train"], as_targets(task.splits["train"].targets, "classes"))


def dense_start(head):
    return head.dense.weight.detach()


@pytest.mark.parametrize("dtype, tolerance", [("float32", 1e-5), ("float16", 2e-2)])
@pytest.mark.parametrize("fusion", [*FUSIONS])
def test_logits_are_those_of_the_whole_model(probe_task, tmp_path_factory, dtype, tolerance, fusion):
    where = tmp_path_factory.getbasetemp() / "logits"
    store = open_or_create(where, "x", probe_task.describe(), dtype, probe_task.create_encoder)
    head = probe_task.create_head({"fusion": fusion, "num_heads": 2, "q_dim": 4}, store.start)
    model = probe_task.load_model()[0]
    model.classification_heads["head"] = head
    rows = probe_task.splits["dev"].tokens
    batch = collate_tokens([rows[row] for row in range(len(rows))], pad_idx=1)
    with torch.no_grad():
        expected, _ = model.eval()(batch, features_only=True, classification_head_name="head")
    (logits,) = predict([LayerHead(head)], store.splits["dev"])
    torch.testing.assert_close(logits, expected, atol=tolerance, rtol=tolerance)


def test_a_training_is_that_of_fairseq(probe_task, tmp_path):
    """From the same start, all rows in one batch, where neither drawing of numbers nor order plays a part."""
    settings = TrainingSettings(lr=0.002, batch_size=SPLITS["train"], epochs=17)
    options = [*probe_task.encoder.arch_args, "--freeze-backbone", "--batch-size", SPLITS["train"]]
    start = ("--finetune-from-model", probe_task.encoder.restore_file)
    first = run_train(probe_task.data, tmp_path / "start", *options, *start, "--max-epoch", "1", arch="sot_bert_base")
    options += ["--adam-betas", "(0.9, 0.98)", "--adam-eps", "1e-6", "--weight-decay", "0.1", "--clip-norm", "0"]
    options += ["--lr-scheduler", "polynomial_decay", "--lr", "0.002", "--total-num-update", "17"]
    options += ["--warmup-updates", "1", "--max-epoch", "17", "--required-batch-size-multiple", "1"]
    start = ("--finetune-from-model", tmp_path / "start" / "checkpoint_last.pt")
    last = run_train(probe_task.data, tmp_path / "end", *options, *start, arch="sot_bert_base")

    store = open_or_create(tmp_path, "x", probe_task.describe(), "float32", probe_task.create_encoder)
    head = probe_task.create_head({"num_heads": 2, "q_dim": 4, "k_dim": 3})  # that of run_train
    prefix = "classification_heads.sentence_classification_head."
    head.load_state_dict({name: first["model"][prefix + name] for name in head.state_dict()})
    candidate = Candidate(lambda: LayerHead(head), settings)
    optimize = probe.FairseqProbe.optimize
    data = train_split(probe_task, store)
    train_heads([candidate], data, Objective("classes", 2), 1, optimize=lambda *given: optimize(None, *given))
    for name, value in head.state_dict().items():
        torch.testing.assert_close(value, last["model"][prefix + name], atol=1e-4, rtol=1e-3)
    moved = head.word_fc.weight - first["model"][prefix + "word_fc.weight"]
    assert moved.abs().max() > 0.01


@pytest.mark.parametrize("updates", [5, 50, 350])
def test_learning_rate_is_fairseqs(updates):
    class Optimizer:
        def set_lr(self, lr):
            self.lr = lr

        def get_lr(self):
            return self.lr

    optimizer = Optimizer()
    config = PolynomialDecayLRScheduleConfig(
        total_num_update=updates, warmup_updates=updates * 6 // 100, lr=[0.5], end_learning_rate=0.0, power=1.0
    )
    schedule = PolynomialDecayLRSchedule.__new__(PolynomialDecayLRSchedule)
    schedule.cfg, schedule.optimizer = config, optimizer
    schedule.lr, schedule.end_learning_rate, schedule.power, schedule.total_num_update = 0.5, 0.0, 1.0, updates
    for update in range(updates):  # the trainer calls it before the first update, too
        assert schedule.step_update(update) == pytest.approx(0.5 * lr_factor(update, updates))


@pytest.mark.parametrize("fusion", ["cls", "sum_fc", "words"])
def test_heads_start_from_the_pretrained_pooler(probe_task, fusion):
    model, pooler = probe_task.load_model()
    head = probe_task.create_head({"fusion": fusion}, pooler)
    trained = model.classification_heads["sentence_classification_head"]
    assert torch.equal(dense_start(trained), pooler["dense.weight"])
    if fusion == "words":
        assert dense_start(head).numel() == 0
    else:
        assert torch.equal(dense_start(head), pooler["dense.weight"])
        assert not torch.equal(dense_start(probe_task.create_head({"fusion": fusion})), pooler["dense.weight"])


def test_the_second_run_reads_the_cache_and_gives_the_same_numbers(run, cache, capsys, monkeypatch):
    first = run("--heads", "cls", "mgcrp", "gap-words", "--head-dropout", "0.3")
    entries = set(cache.iterdir())

    def fail(*args, **kwargs):
        raise AssertionError("the encoder was built")

    monkeypatch.setattr(ProbeTask, "create_encoder", fail)
    monkeypatch.setattr(ProbeTask, "load_model", fail)
    second = run("--heads", "cls", "mgcrp", "gap-words", "--head-dropout", "0.3")
    assert untimed(first) == untimed(second)
    assert set(cache.iterdir()) == entries
    assert "56 rows" in capsys.readouterr().out.split("read from the cache, no encoder was run")[0]


def test_every_head_there_is_is_probed(run):
    results = run(
        "--heads", *HEAD_NAMES, "--epochs", "1", "--efficient-queries", "4", "--head-feature-norm", "batch_norm"
    )
    assert set(results["heads"]) == set(HEAD_NAMES)
    for name, head in results["heads"].items():
        command = head["seeds"]["1"]["command"]
        assert "--head-feature-norm batch_norm" in command
        assert ("--efficient-queries 4" in command) == name.startswith("efficient")


def test_options_of_a_head_are_tried_for_that_head_alone(run):
    words = ("--heads", "cls", "attention", "moment", "--head-feature-norm", "none", "batch_norm")
    results = run(*words, "--mgcrp-heads", "2", "4", "--mgcrp-head-norm", "none", "layer_norm", "--epochs", "1")
    norms = [f"--head-feature-norm {name}" for name in ("none", "batch_norm")]
    pooled = {f"{head} {norm} --mgcrp-heads {n}" for head in ("attention", "moment") for norm in norms for n in (2, 4)}
    assert set(results["heads"]) == {f"cls {norm}" for norm in norms} | pooled


def test_the_file_has_the_form_of_the_scripts_results(run, capsys):
    results = run("--heads", "mgcrp", "cls", "--seeds", "1", "2", "3")
    assert (results["task"], results["metric"], results["unit"]) == ("SST-2", "accuracy", "percent")
    assert list(results["heads"]) == ["mgcrp", "cls"]
    for head in results["heads"].values():
        assert list(head["seeds"]) == ["1", "2", "3"]
        for which, summary in (("metrics", "summary"), ("last_epoch", "last_epoch_summary")):
            values = [seed[which]["dev"]["accuracy"] for seed in head["seeds"].values()]
            expected = {"n": 3, "mean": statistics.fmean(values), "std": statistics.stdev(values)}
            assert head[summary]["dev"]["accuracy"] == {**expected, "median": statistics.median(values)}
        for seed in head["seeds"].values():
            assert seed["metrics"]["dev"]["accuracy"] >= seed["last_epoch"]["dev"]["accuracy"]
            assert seed["best_epoch"] in (1, 2)
    table = [line for line in capsys.readouterr().out.splitlines() if line.startswith("| SST-2 ")]
    assert [line.split("|")[4].strip() for line in table] == ["mgcrp", "cls"]
    assert [line.split("|")[8].strip() for line in table] == [
        f"{head['parameters']:,}" for head in results["heads"].values()
    ]


def test_lists_of_values_make_a_grid_and_a_command_repeats_its_run(run, tmp_path):
    words = ("--heads", "cls", "gap", "mgcrp", "--mgcrp-heads", "1", "2", "--head-normalization", "svpn", "epn")
    results = run(*words, "--svpn-alpha", "0.5", "0.25", "--lr", "0.01")
    mgcrp = [f"svpn --mgcrp-heads {heads} --svpn-alpha {alpha}" for heads in (1, 2) for alpha in (0.5, 0.25)]
    mgcrp += [f"epn --mgcrp-heads {heads}" for heads in (1, 2)]
    assert set(results["heads"]) == {"cls", "gap", *(f"mgcrp --head-normalization {name}" for name in mgcrp)}
    label = "mgcrp --head-normalization svpn --mgcrp-heads 1 --svpn-alpha 0.25"
    entry = results["heads"][label]["seeds"]["1"]
    command = shlex.split(entry["command"])
    assert command[:3] == ["python", "-m", "sot_fairseq.probe"]
    probe.main(command[3:])
    again = json.loads((tmp_path / "out" / "results.json").read_text())["heads"]["mgcrp"]["seeds"]["1"]
    assert again["metrics"] == entry["metrics"]
    assert again["last_epoch"] == entry["last_epoch"]
    assert again["command"] == entry["command"]


def test_training_options_make_a_grid_too(run):
    results = run(
        "--heads", "cls", "--epochs", "1", "3", "--batch-size", "4", "--weight-decay", "0", "0.1", "--lr", "1"
    )
    labels = [f"cls --epochs {epochs} --weight-decay {decay}" for epochs in (1, 3) for decay in ("0.0", "0.1")]
    assert list(results["heads"]) == labels
    values = [results["heads"][label]["seeds"]["1"] for label in labels]
    assert {value["best_epoch"] for value in values} <= {1, 2, 3}


def entry_of(capsys):
    line = next(line for line in capsys.readouterr().out.splitlines() if line.startswith("token states"))
    return line.split(": ")[1], "read from the cache" in line


def test_what_makes_another_entry(run, encoder, glue, tmp_path, capsys):
    found = []
    torch.manual_seed(1)
    (tmp_path / encoder.name).mkdir()
    other = save_bert(tmp_path / encoder.name, random_bert())
    changed = tmp_path / "changed"
    for name in SPLITS:
        lines = (glue / "SST-2" / f"{name}.tsv").read_text().splitlines()
        relabelled = [lines[0], *(f"{line[:-1]}{1 - int(line[-1])}" for line in lines[1:])]
        for kind, content in (("labels", relabelled), ("text", [lines[0], "mat\t0", *lines[2:]])):
            (changed / kind).mkdir(parents=True, exist_ok=True)
            (changed / kind / f"{name}.tsv").write_text("\n".join(content) + "\n")
    for words in (
        (),
        ("--data-dir", changed / "labels"),
        ("--max-length", "6"),
        ("--cache-dtype", "float32"),
        ("--data-dir", changed / "text"),
        ("--encoder", other),
    ):
        run("--heads", "cls", "--cache-dir", tmp_path / "here", *words)
        found.append(entry_of(capsys))
    entries, was_read = zip(*found, strict=True)
    assert was_read == (False, True, False, False, False, False)  # other labels have the same states
    assert len(set(entries)) == 5


def test_a_damaged_entry_is_encoded_again(run, tmp_path, capsys, caplog):
    words = ("--heads", "mgcrp", "--cache-dir", tmp_path / "here")
    first = run(*words)
    folder, _ = entry_of(capsys)
    path = next((tmp_path / "here").glob("*/train.layer-*.npy"))
    assert str(path.parent) == folder
    path.write_bytes(path.read_bytes()[:1000])
    assert untimed(run(*words)) == untimed(first)
    assert entry_of(capsys) == (folder, False)
    assert f"{path.name} has another checksum" in caplog.text


def test_regression(run):
    results = run("--heads", "mgcrp", "cls", "--head-fusion", "sum_loss", task="STS-B")
    assert results["metric"] in ("pearson", "pearson_and_spearman")
    for head in results["heads"].values():
        assert -100 <= head["seeds"]["1"]["metrics"]["dev"]["spearman"] <= 100


def test_mnli_has_two_dev_splits(run):
    results = run("--heads", "gcp", "--gcp-iters", "3", task="MNLI")
    assert set(results["heads"]["gcp"]["summary"]) == {"dev_matched", "dev_mismatched"}


def test_a_scratch_encoder_and_own_data(run, corpus, tmp_path, monkeypatch, encoder):
    own = ("--data-dir", corpus, "--text-columns", "sentence", "--label-column", "label", "--labels", "good,bad")
    results = run(*own, "--heads", "cls", task=None)
    assert results["task"] == "custom"
    assert "--labels good,bad" in results["heads"]["cls"]["seeds"]["1"]["command"]


def test_usage_errors(run, glue, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(ProbeTask, "create_encoder", lambda self: pytest.fail("the encoder ran"))
    with pytest.raises(SystemExit) as stop:
        run("--heads", "svm")
    assert stop.value.code == 2
    assert "invalid choice: 'svm'" in capsys.readouterr().err
    with pytest.raises(SystemExit):
        run("--lr", "-1")
    assert "--lr: must be positive, got -1" in capsys.readouterr().err
    with pytest.raises(SystemExit):
        run("--batch-size", "1" + 20 * "0")
    assert f"--batch-size: must be below {2**31}, got 1" in capsys.readouterr().err
    with pytest.raises(UsageError, match=r"num_heads must be a positive integer, got 0"):
        run("--mgcrp-heads", "2", "0", "--cache-dir", tmp_path / "empty")
    with pytest.raises(UsageError, match=r"no train.tsv: .*nowhere"):
        run("--data-dir", tmp_path / "nowhere")
    with pytest.raises(UsageError, match="no such encoder: tinylm"):
        run(which="tinylm")
    assert not (tmp_path / "empty").exists()
    with pytest.raises(SystemExit):
        run("--seeds", "18446744073709551616")
    assert "--seeds: must be below 18446744073709551616" in capsys.readouterr().err
    with pytest.raises(SystemExit):
        run("--seeds", "-1")
    assert "--seeds: must be a whole number, got -1" in capsys.readouterr().err
    write_rows(tmp_path / "own" / "train.tsv", ("sentence", "label"), [("the cat", "1"), ("a mat", "0")])
    write_rows(tmp_path / "own" / "dev.tsv", ("sentence", "label"), [])
    with pytest.raises(UsageError, match=r"no rows: .*dev.tsv"):
        run("--data-dir", tmp_path / "own")


def test_a_training_that_diverges_does_not_stop_the_others(run, capsys):
    results = run("--heads", "cls", "mgcrp", "--lr", "1e30", "0.01", "--seeds", "1", "2", status=1)
    assert list(results["heads"]) == ["cls --lr 0.01", "mgcrp --lr 0.01"]
    assert list(results["heads"]["cls --lr 0.01"]["seeds"]) == ["1", "2"]
    names = [f"{head} --lr 1e+30, seed {seed}" for seed in (1, 2) for head in ("cls", "mgcrp")]
    assert list(results["failed"]) == names
    assert re.fullmatch(r"the loss is not finite: epoch \d, lr 1e\+30; give a lower --lr", results["failed"][names[0]])
    captured = capsys.readouterr()
    assert captured.err.count("failed: the loss is not finite") == 4
    assert captured.err.splitlines()[-1].startswith(
        "error: 4 trainings failed: cls --lr 1e+30, seed 1 (the loss is not"
    )
    assert "cls --lr 0.01" in captured.out


def test_class_weights_and_a_collapsed_head(run, caplog, capsys):
    results = run("--heads", "gap", "--class-weights", "1=1000", "--lr", "0.05")
    assert "--class-weights 1=1000" in results["heads"]["gap"]["seeds"]["1"]["command"]
    assert "gap, seed 1: all 16 predictions of split 'dev' are '1', as are " in caplog.text
    with pytest.raises(UsageError, match="no such class: --class-weights 'cat'; the classes are 0, 1"):
        run("--heads", "gap", "--class-weights", "cat=2")
    with pytest.raises(UsageError, match="'1' is not a class weight: --class-weights 1"):
        run("--class-weights", "1")


def test_several_labels_a_row(run, tmp_path):
    rng = random.Random(5)
    for split, count in SPLITS.items():
        texts = [text(rng) for _ in range(count)]
        rows = [(line, ",".join(word for word in ("cat", "mat") if word in line.split())) for line in texts]
        write_rows(tmp_path / "own" / f"{split}.tsv", ("sentence", "words"), rows)
    own = ("--data-dir", tmp_path / "own", "--text-columns", "sentence", "--label-column", "words", "--multi-label")
    words = ("--heads", "gap-words", "--lr", "0.03", "--epochs", "10", "--class-weights", "balanced")
    results = run(*own, *words, task=None)
    metrics = results["heads"]["gap-words"]["seeds"]["1"]["metrics"]["dev"]
    assert set(metrics) == {"f1_micro", "f1_macro", "accuracy"}
    assert metrics["f1_micro"] > 80
    assert results["metric"] == "f1_micro"
    assert " --multi-label " in results["heads"]["gap-words"]["seeds"]["1"]["command"]


def test_mistakes_are_one_line_and_status_2(tmp_path):
    words = ["--encoder", "tinylm", "--task", "RTE", "--data-dir", str(tmp_path), "--output-dir", str(tmp_path / "out")]
    command = [sys.executable, "-m", "sot_fairseq.probe", *words]
    run = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert run.returncode == 2, run.stderr
    assert run.stderr.startswith("error: no such encoder: tinylm is neither a name nor a path")
    assert len(run.stderr.splitlines()) == 1


def test_a_head_that_breaks_in_its_last_update_has_no_metrics(run):
    with pytest.raises(
        UsageError, match=r"^all trainings failed: cls, seed 1 \(the head's outputs are not finite after an epoch"
    ):
        run("--heads", "cls", "--lr", "1e38", "--epochs", "1", "--batch-size", "1000")


def test_settings_are_chosen_on_held_out_rows_and_the_model_predicts(run, tmp_path, monkeypatch):
    words = ("--heads", "cls", "mgcrp", "gap-words", "--lr", "1e-9", "0.02", "--held-out", "0.25", "--save", "all")
    results = run(*words, "--epochs", "6", "--cache-dtype", "float32")
    assert list(results["heads"]) == ["cls", "mgcrp", "gap-words"]
    for label, head in results["heads"].items():
        assert head["chosen"]["held_out"] >= 0
        (entry,) = head["seeds"].values()
        assert f"--lr {head['chosen']['lr']}" in entry["command"] or head["chosen"]["lr"] == 1e-3
        assert entry["model"] == str(tmp_path / "out" / "models" / label / "seed-1")
        predictor = sot_fairseq.from_pretrained(entry["model"])
        found = predictor.evaluate(tmp_path / "out" / "data")
        assert found["accuracy"] == pytest.approx(entry["metrics"]["dev"]["accuracy"])
        assert predictor.predict(["the cat sat"])[0].label in ("0", "1")


@pytest.mark.parametrize("words", [("--layers", "0", "1"), ("--layers", "0", "1", "--mix-layers")])
def test_layers(run, words):
    results = run("--heads", "gap-words", *words)
    mixed = "--mix-layers" in words
    assert list(results["heads"]) == (["gap-words"] if mixed else [f"gap-words --layers {layer}" for layer in (0, 1)])
    for head in results["heads"].values():
        assert ("--mix-layers" in head["seeds"]["1"]["command"]) == mixed
    with pytest.raises(UsageError, match=r"fairseq's model reads the last layer: --layers; give --save none"):
        run("--heads", "gap-words", "--layers", "0", "--save", "best")
    with pytest.raises(UsageError, match=r"no such layer: --layers 9; the encoder has 0"):
        run("--layers", "9")
    with pytest.raises(UsageError, match=r"a layer is named twice: --layers -1 3"):
        run("--layers", "-1", "3")
    with pytest.raises(UsageError, match=r"--mix-layers needs several layers: --layers has one; give more"):
        run("--mix-layers")
