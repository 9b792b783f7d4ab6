"""Each GLUE task from its files to its dev metrics: the scripts' steps, run in this process."""

import json
import shlex
import shutil

import pytest
from fairseq import checkpoint_utils, options
from fairseq.dataclass.utils import convert_namespace_to_omegaconf
from fairseq_cli import train as fairseq_train
from scipy.stats import pearsonr, spearmanr
from sklearn.metrics import accuracy_score, f1_score, matthews_corrcoef

import sot_fairseq
from sot_base.errors import UsageError
from sot_base.safe_checkpoint import read_checkpoint
from sot_fairseq import prepare
from sot_fairseq.results import collect
from sot_text.glue import GLUE_TASKS
from tests.glue_files import LABEL_COLUMNS, TEXTS, write_glue
from tests.sot_fairseq.bert_files import VOCAB, random_bert, save_bert
from tests.sot_text.test_glue import HEADERS

SMALL = ["--cpu", "--mgcrp-heads", "2", "--mgcrp-q", "4", "--mgcrp-k", "3", "--max-positions", "16"]
MAIN = {"CoLA": "mcc", "MRPC": "acc_and_f1", "QQP": "acc_and_f1", "STS-B": "pearson_and_spearman"}


@pytest.fixture(scope="module")
def glue(tmp_path_factory):
    return write_glue(tmp_path_factory.mktemp("glue"), [word for word in VOCAB if word.isalpha()])


@pytest.fixture(scope="module")
def encoder(tmp_path_factory):
    return save_bert(tmp_path_factory.mktemp("bert"), random_bert())


def prepare_run(glue, encoder, output, task, *words, options_=()):
    arguments = ["--task", task, "--encoder", str(encoder), "--data-dir", str(glue), "--output-dir", str(output)]
    prepare.main([*arguments, *options_, "--heads", "mgcrp", "--", *words])
    return shlex.split((output / "mgcrp" / "seed-1" / "command.txt").read_text())


def train(command):
    for holder, name in ((checkpoint_utils.save_checkpoint, "best"), (fairseq_train.should_stop_early, "best")):
        if hasattr(holder, name):
            delattr(holder, name)
    assert command[0] == "fairseq-train"
    args = options.parse_args_and_arch(options.get_training_parser(), command[1:])
    fairseq_train.main(convert_namespace_to_omegaconf(args))


def read_dev(path, task):
    """Texts and labels of a file, by the header that GLUE gives it."""
    lines = [line.split("\t") for line in path.read_text().splitlines()]
    header = ["source", "label", "mark", "sentence"] if task == "CoLA" else HEADERS[task, path.name]
    rows = lines if task == "CoLA" else lines[1:]
    texts = [tuple(cell for name, cell in zip(header, row, strict=True) if name in TEXTS) for row in rows]
    labels = [next(cell for name, cell in zip(header, row, strict=True) if name in LABEL_COLUMNS) for row in rows]
    return [text[0] if len(text) == 1 else text for text in texts], labels


def expected_metric(name, labels, predicted):
    if name == "pearson_and_spearman":
        numbers = [float(label) for label in labels]
        return 50 * (pearsonr(numbers, predicted)[0] + spearmanr(numbers, predicted)[0])
    accuracy = accuracy_score(labels, predicted)
    if name == "acc_and_f1":
        return 50 * (accuracy + f1_score(labels, predicted, pos_label="1"))
    return 100 * (accuracy if name == "accuracy" else matthews_corrcoef(labels, predicted))


@pytest.mark.filterwarnings("ignore::UserWarning")  # hydra's, on how fairseq uses it
@pytest.mark.parametrize("task", GLUE_TASKS)
def test_from_files_to_metrics(glue, encoder, tmp_path, task):
    train(prepare_run(glue, encoder, tmp_path, task, *SMALL, options_=("--max-epoch", "1", "--lr", "0.001")))
    results = collect(tmp_path)
    metrics = results["heads"]["mgcrp"]["seeds"]["1"]["metrics"]
    dev = ["dev_matched", "dev_mismatched"] if task == "MNLI" else ["dev"]
    assert list(metrics) == dev
    main = MAIN.get(task, "accuracy")
    assert (results["task"], results["metric"], results["encoder"]) == (task, main, str(encoder))
    predictor = sot_fairseq.from_pretrained(tmp_path / "mgcrp" / "seed-1", "checkpoint_best.pt")
    for name in dev:
        texts, labels = read_dev(glue / task / f"{name}.tsv", task)
        predicted = [prediction.label for prediction in predictor.predict(texts)]
        assert metrics[name][main] == pytest.approx(expected_metric(main, labels, predicted), abs=1e-3)
    state = read_checkpoint(tmp_path / "mgcrp" / "seed-1" / "checkpoint_best.pt", lazy=False)
    assert state["extra_state"]["best"] == pytest.approx(metrics[dev[0]][main], abs=1e-3)  # picked on the first


def test_table_then_options_then_words(glue, encoder, tmp_path):
    """24 rows: an update is a batch, or half of them."""

    def value(name, words):
        return words[len(words) - words[::-1].index(name)]

    command = prepare_run(glue, encoder, tmp_path, "QNLI")  # bert's row
    settings = ("--lr", "--batch-size", "--mgcrp-heads", "--mgcrp-q", "--mgcrp-k", "--head-dropout", "--max-epoch")
    assert [value(name, command) for name in settings] == ["3e-05", "64", "1", "112", "48", "0.5", "10"]
    assert value("--total-num-update", command) == "10"
    options_ = ("--batch-size", "8", "--max-epoch", "5", "--lr", "0.1")
    command = prepare_run(glue, encoder, tmp_path, "QNLI", options_=options_)
    assert [value(name, command) for name in ("--lr", "--batch-size", "--total-num-update")] == ["0.1", "8", "15"]
    words = ("--mgcrp-q", "8", "--batch-size", "4", "--update-freq", "2", "--freeze-backbone")
    command = prepare_run(glue, encoder, tmp_path, "QNLI", *words, options_=("--batch-size", "8"))
    values = [value(name, command) for name in ("--mgcrp-q", "--batch-size", "--max-epoch", "--total-num-update")]
    assert values == ["8", "4", "4", "12"]
    assert value("--lr", command) == "0.001"
    command = prepare_run(glue, encoder, tmp_path, "QNLI", "--lr", "0.5", options_=("--lr", "0.1"))
    assert value("--lr", command) == "0.5"


def test_the_head_values_of_the_table_are_for_mgcrp_alone(glue, encoder, tmp_path):
    heads = ("mgcrp", "gap", "cls")
    words = ["--task", "RTE", "--encoder", str(encoder), "--data-dir", str(glue), "--output-dir", str(tmp_path)]
    prepare.main([*words, "--heads", *heads, "--seeds", "3", "4"])
    files = {head: [tmp_path / head / f"seed-{seed}" / "command.txt" for seed in (3, 4)] for head in heads}
    commands = {head: [file.read_text() for file in files[head]] for head in heads}
    assert all("--mgcrp-q 56 --mgcrp-k 32 --head-dropout 0.8" in command for command in commands["mgcrp"])
    assert all("--mgcrp" not in command and "dropout" not in command for command in commands["gap"] + commands["cls"])
    assert all("--head-fusion sum_fc --head-pooling gap" in command for command in commands["gap"])
    assert all("--head-fusion cls" in command for command in commands["cls"])
    assert ["--seed 3 " in commands["gap"][0], "--seed 4 " in commands["gap"][1]] == [True, True]


@pytest.mark.parametrize(
    "words, message",
    [
        (["--seed", "9"], r"--seed would apply to every training: the extra arguments; give --seeds \(SEEDS\)"),
        (["--save-dir=x"], "--save-dir would apply to every training"),
        (["--head-pooling", "gcp"], "--head-pooling would apply to every training"),
        (["--head-fusion", "words"], "--head-fusion would replace the head cls"),
    ],
)
def test_words_that_would_make_all_trainings_the_same(glue, encoder, tmp_path, words, message):
    data = ["--task", "WNLI", "--encoder", str(encoder), "--data-dir", str(glue), "--output-dir", str(tmp_path / "out")]
    with pytest.raises(UsageError, match=message):
        prepare.main([*data, "--heads", "mgcrp", "cls", "--seeds", "1", "2", "--", *words])
    assert not (tmp_path / "out").exists()
    command = prepare_run(glue, encoder, tmp_path / "out", "WNLI", "--head-fusion", "words")  # mgcrp alone
    assert command[-2:] == ["--head-fusion", "words"]


def test_another_run_needs_another_folder(glue, encoder, tmp_path):
    prepare_run(glue, encoder, tmp_path, "WNLI")
    old = json.loads((tmp_path / "run.json").read_text())
    prepare_run(glue, encoder, tmp_path, "WNLI", options_=("--lr", "0.1"))  # nothing was trained: no harm
    (tmp_path / "mgcrp" / "seed-1" / "checkpoint_last.pt").touch()
    prepare_run(glue, encoder, tmp_path, "WNLI", options_=("--lr", "0.1"))  # the same again goes on
    with pytest.raises(UsageError, match=r"other settings \(lr 0.1, now 2e-05\): .*; give another OUT_DIR"):
        prepare_run(glue, encoder, tmp_path, "WNLI")
    assert json.loads((tmp_path / "run.json").read_text()) == old | {"lr": 0.1}


@pytest.mark.parametrize(
    "words",
    [("--seeds", "-1"), ("--seeds", "4294967296"), ("--lr", "nan"), ("--batch-size", "0"), ("--max-epoch", "0")],
)
def test_numbers_that_cannot_be(glue, encoder, tmp_path, words):
    with pytest.raises(UsageError, match=f"{words[0]} {words[1]}; "):
        prepare_run(glue, encoder, tmp_path / "out", "WNLI", options_=words)
    assert not (tmp_path / "out").exists()


def test_a_copy_of_a_training_is_no_result(glue, encoder, tmp_path):
    prepare_run(glue, encoder, tmp_path, "WNLI")
    copy = tmp_path / "mgcrp" / "seed-1.old"
    copy.mkdir()
    (copy / "checkpoint_best.pt").touch()
    with pytest.raises(UsageError, match=r"no <head>/seed-<n>/checkpoint_best\.pt"):
        collect(tmp_path)


def test_a_run_does_not_go_on_with_other_data(glue, encoder, tmp_path):
    data, output = tmp_path / "glue", tmp_path / "out"
    shutil.copytree(glue / "WNLI", data / "WNLI")
    prepare_run(data, encoder, output, "WNLI")
    (output / "mgcrp" / "seed-1" / "checkpoint_last.pt").touch()
    prepare_run(data.rename(tmp_path / "moved"), encoder, output, "WNLI")  # the same files elsewhere
    binary = (output / "data" / "input0" / "train.bin").read_bytes()
    train = tmp_path / "moved" / "WNLI" / "train.tsv"
    train.write_text("".join(train.read_text().splitlines(keepends=True)[:-1]))
    with pytest.raises(UsageError, match=r"other settings \(the data files\): .*; give another OUT_DIR"):
        prepare_run(tmp_path / "moved", encoder, output, "WNLI")
    assert (output / "data" / "input0" / "train.bin").read_bytes() == binary
    (output / "run.json").write_text("{")
    with pytest.raises(UsageError, match="not a JSON file"):
        prepare_run(tmp_path / "moved", encoder, output, "WNLI")
