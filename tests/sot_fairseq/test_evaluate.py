"""`python -m sot_fairseq.evaluate`: metrics over whole dev sets, equal to those of scikit-learn and scipy."""

import argparse
import json
import shutil

import numpy as np
import pytest
import torch
from scipy.stats import pearsonr, spearmanr
from sklearn.metrics import accuracy_score, f1_score

import sot_fairseq
from sot_base.errors import UsageError
from sot_fairseq import evaluate
from sot_fairseq.data.header import DataHeader
from tests.sot_fairseq.conftest import preprocess_folder, run_train
from tests.sot_fairseq.glue_files import NLI, train_task


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """For each task its TSV files, data and checkpoint; trained when first asked for."""
    found = {}

    def get(task):
        if task not in found:
            found[task] = train_task(tmp_path_factory.mktemp(task), task, "--max-epoch", "2", "--lr", "0.02")
        return found[task]

    return get


@pytest.fixture
def run(capsys):
    def run(*words):
        capsys.readouterr()
        evaluate.main([str(word) for word in words])
        return capsys.readouterr().out

    return run


def rows_of(path):
    """Columns of a TSV file by name."""
    header, *rows = (line.split("\t") for line in path.read_text().splitlines())
    return dict(zip(header, zip(*rows, strict=True), strict=True))


def truth_and_logits(trained, task, file):
    """The labels of a dev file, and the model's logits of its texts, computed one at a time."""
    tsv, _, folder = trained
    table = rows_of(tsv / file)
    texts, label = {
        "QQP": (("question1", "question2"), "is_duplicate"),
        "STS-B": (("sentence1", "sentence2"), "score"),
    }.get(task, (("sentence1", "sentence2"), "gold_label"))
    predictor = sot_fairseq.from_pretrained(folder)
    pairs = list(zip(*(table[name] for name in texts), strict=True))
    return table[label], np.concatenate([predictor.logits([pair]).numpy() for pair in pairs])


@pytest.mark.parametrize("batch_size", [1, 7])
def test_mnli_matched_and_mismatched_are_both_there(trained, run, batch_size):
    folder = trained("MNLI")[2]
    expected = {}
    for name in ("dev_matched", "dev_mismatched"):
        truth, logits = truth_and_logits(trained("MNLI"), "MNLI", f"{name}.tsv")
        expected[name] = {"accuracy": 100 * accuracy_score([NLI.index(x) for x in truth], logits.argmax(1))}
    assert expected["dev_matched"] != expected["dev_mismatched"]
    found = json.loads(run(folder, "--json", "--batch-size", batch_size))
    assert found == {name: pytest.approx(values, abs=1e-9) for name, values in expected.items()}
    assert run(folder) == "".join(f"{name}: accuracy {values['accuracy']:.2f}\n" for name, values in expected.items())


@pytest.mark.parametrize("batch_size", [1, 7])
def test_qqp_f1(trained, run, batch_size):
    truth, logits = truth_and_logits(trained("QQP"), "QQP", "dev.tsv")
    truth, predictions = np.array(truth, int), logits.argmax(1)
    assert set(predictions) == {0, 1}
    accuracy, f1 = 100 * accuracy_score(truth, predictions), 100 * f1_score(truth, predictions)
    found = json.loads(run(trained("QQP")[2], "--json", "--batch-size", batch_size))
    assert found == {"dev": pytest.approx({"accuracy": accuracy, "f1": f1, "acc_and_f1": (accuracy + f1) / 2})}


@pytest.mark.parametrize("batch_size", [1, 7])
def test_stsb_correlations(trained, run, batch_size):
    truth, logits = truth_and_logits(trained("STS-B"), "STS-B", "dev.tsv")
    truth, numbers = np.array(truth, float), logits[:, 0]
    pearson, spearman = 100 * pearsonr(numbers, truth)[0], 100 * spearmanr(numbers, truth)[0]
    found = json.loads(run(trained("STS-B")[2], "--json", "--batch-size", batch_size))["dev"]
    assert found["pearson"] == pytest.approx(pearson, abs=1e-3)  # float32 numbers of other batches
    assert found["spearman"] == pytest.approx(spearman, abs=1e-9)
    assert found["pearson_and_spearman"] == pytest.approx((pearson + spearman) / 2, abs=1e-3)


def test_splits_and_metrics_by_name(trained, run):
    _, data, folder = trained("MNLI")
    both = json.loads(run(folder, "--json"))
    one = {"dev_mismatched": both["dev_mismatched"]}
    for name in ("valid1", "dev_mismatched"):
        assert json.loads(run(folder, "--json", "--split", name, "--data", data)) == one
    assert list(json.loads(run(folder, "--json", "--split", "train", "valid"))) == ["train", "dev_matched"]
    named = json.loads(run(folder, "--json", "--split", "valid", "--metrics", "mcc", "f1"))
    assert set(named["dev_matched"]) == {"mcc", "f1"}
    with pytest.raises(UsageError, match="no such metric: 'bleu'"):
        run(folder, "--metrics", "bleu")
    with pytest.raises(UsageError, match="no data for split 'valid7'"):
        run(folder, "--split", "valid7")
    with pytest.raises(UsageError, match="split 'test' has no labels"):
        run(folder, "--split", "test")


def test_data_of_fairseqs_own_commands_have_the_names_of_their_splits(trained, run, tmp_path):
    _, data, folder = trained("MNLI")
    shutil.copytree(data, tmp_path / "stock")
    (tmp_path / "stock" / "preprocess.json").unlink()
    expected = json.loads(run(folder, "--json"))
    found = json.loads(run(folder, "--json", "--data", tmp_path / "stock"))
    assert found == {"valid": expected["dev_matched"], "valid1": expected["dev_mismatched"]}
    with pytest.raises(UsageError, match=r"no dev split with labels: .*nothing; name splits with --split"):
        run(folder, "--data", tmp_path / "nothing")


def test_other_data_are_refused(trained, run, data, tmp_path):
    tsv, pairs, folder = trained("MNLI")
    with pytest.raises(UsageError, match="the checkpoint has the labels entailment, neutral, contradiction, the data"):
        run(folder, "--data", data)
    other = preprocess_folder(tsv, tmp_path / "moses", "--task", "MNLI", "--moses-detokenize")
    assert DataHeader.load(other).moses_detokenize
    assert not DataHeader.load(pairs).moses_detokenize
    with pytest.raises(UsageError, match=r"trained without --moses-detokenize, the data were made otherwise: .*moses"):
        run(folder, "--data", other)


def test_a_model_that_predicts_one_class_is_named(corpus, data, tmp_path, caplog):
    state = run_train(data, tmp_path / "start", "--max-update", "1")
    state["model"]["classification_heads.sentence_classification_head.out_proj.bias"][1] += 100
    torch.save(state, tmp_path / "start.pt")
    caplog.clear()
    words = ("--finetune-from-model", tmp_path / "start.pt", "--lr", "0", "--max-epoch", "2", "--batch-size-valid", "5")
    run_train(data, tmp_path / "run", *words)
    warnings = [record.message for record in caplog.records if "predictions" in record.message]
    truth = rows_of(corpus / "dev.tsv")["label"]
    share = f"{truth.count('good') / len(truth):.0%}"
    expected = (
        f"all 23 predictions of split 'valid', head mgcrp, seed 1 are 'good', as are {share} of the targets: the "
    )
    assert len(warnings) == 2  # one an epoch
    assert all(message.startswith(expected) for message in warnings)
    assert warnings[0].endswith("lower the learning rate, warm up longer, or try another seed")
    caplog.clear()
    sot_fairseq.from_pretrained(tmp_path / "run").evaluate()
    assert [record.message for record in caplog.records if "predictions" in record.message] == warnings[:1]


def test_nothing_is_allowed_beyond_the_reading_of_a_checkpoint(trained):
    _, _, folder = trained("QQP")
    before = set(torch.serialization.get_safe_globals())
    assert sot_fairseq.from_pretrained(folder).labels == ["0", "1"]
    assert set(torch.serialization.get_safe_globals()) == before
    assert argparse.Namespace not in before
