"""The task and criterion through fairseq's own training loop."""

import logging
import pickle

import numpy as np
import pytest
import torch
from fairseq import checkpoint_utils
from fairseq.models.roberta import RobertaModel
from scipy.stats import pearsonr, spearmanr
from sklearn.metrics import accuracy_score, f1_score, matthews_corrcoef

import sot_fairseq
from sot_base.errors import UsageError
from sot_base.safe_checkpoint import read_checkpoint
from sot_core.build import FUSIONS
from sot_fairseq.fairseq_patches.usage_errors import find_usage_error
from tests.sot_fairseq.conftest import preprocess_folder, run_train, write_rows
from tests.support import REPOSITORY

BEST = ("--best-checkpoint-metric", "accuracy", "--maximize-best-checkpoint-metric")
STOCK = "sentence_prediction"


def head_of(checkpoint, name="sentence_classification_head"):
    prefix = f"classification_heads.{name}."
    return {key.removeprefix(prefix): value for key, value in checkpoint["model"].items() if key.startswith(prefix)}


def assert_equal_models(first, second):
    assert first["model"].keys() == second["model"].keys()
    for key, value in first["model"].items():
        assert torch.equal(value, second["model"][key]), key


@pytest.mark.parametrize("criterion", [STOCK, "sentence_prediction_mgcrp"])
def test_stopped_and_resumed_training_is_bitwise_the_uninterrupted_one(data, tmp_path, criterion):
    words = (*BEST, "--max-update", "14", "--max-epoch", "3", "--lr-scheduler", "polynomial_decay")
    words += ("--total-num-update", "20", "--warmup-updates", "3", "--dropout", "0.2")
    whole = run_train(data, tmp_path / "whole", *words, criterion=criterion)
    run_train(data, tmp_path / "parts", *words, "--max-update", "5", criterion=criterion)  # stops within an epoch
    parts = run_train(data, tmp_path / "parts", *words, criterion=criterion)
    assert whole["optimizer_history"][-1]["num_updates"] == 14
    assert_equal_models(whole, parts)
    for key, state in whole["last_optimizer_state"]["state"].items():
        assert torch.equal(state["exp_avg"], parts["last_optimizer_state"]["state"][key]["exp_avg"])


def test_a_best_metric_that_is_a_numpy_number_resumes(data, tmp_path):
    run_train(data, tmp_path, *BEST, "--max-update", "3")
    path = tmp_path / "checkpoint_last.pt"
    state = read_checkpoint(path, lazy=False)
    state["extra_state"]["best"] = np.float64(12.5)
    state["extra_state"]["val_loss"] = np.float32(12.5)
    torch.save(state, path)
    resumed = run_train(data, tmp_path, *BEST, "--max-update", "5")
    assert resumed["optimizer_history"][-1]["num_updates"] == 5


def test_safe_loading_is_never_switched_off():
    sources = [
        path for package in ("sot_core", "sot_text", "sot_fairseq") for path in (REPOSITORY / package).rglob("*.py")
    ]
    assert len(sources) > 20
    for path in sources:
        text = path.read_text()
        assert "weights_only=False" not in text
        assert text.count("torch.load(") == text.count("weights_only=True)") + text.count("weights_only=True,")


def test_parameters_are_those_of_stock_roberta_under_the_same_names(data, tmp_path):
    checkpoint = run_train(data, tmp_path, "--head-fusion", "cls", criterion=STOCK)
    assert set(head_of(checkpoint)) == {"dense.weight", "dense.bias", "out_proj.weight", "out_proj.bias"}
    predictor = sot_fairseq.from_pretrained(tmp_path, "checkpoint_last.pt")
    stock = RobertaModel.build_model(predictor.model.args, predictor.task)
    stock.register_classification_head(predictor.head, num_classes=2)
    stock.load_state_dict(checkpoint["model"], strict=True)
    tokens = torch.tensor([[0, 5, 6, 7, 2, 1, 1]])
    expected, _ = stock.eval()(tokens, classification_head_name=predictor.head)
    actual, _ = predictor.model(tokens, classification_head_name=predictor.head)
    assert torch.equal(actual, expected)


@pytest.mark.parametrize("fusion", list(FUSIONS))
def test_stock_loading_code_survives_every_head(data, tmp_path, fusion, caplog):
    """CASES 8: stock code reads dense.weight and out_proj.weight of every head in a checkpoint."""
    checkpoint = run_train(data, tmp_path, "--head-fusion", fusion, "--max-update", "2")
    predictor = sot_fairseq.from_pretrained(tmp_path, "checkpoint_last.pt")
    stock = RobertaModel.build_model(predictor.model.args, predictor.task)
    state = dict(checkpoint["model"])
    stock.load_state_dict(state, strict=True)
    assert "deleting classification head" in caplog.text
    assert torch.equal(
        stock.encoder.sentence_encoder.embed_tokens.weight, checkpoint["model"]["encoder.lm_head.weight"]
    )


@pytest.mark.parametrize("pooling", ["mgcrp", "gcp", "gap"])
@pytest.mark.parametrize("fusion", list(FUSIONS))
def test_every_trained_parameter_gets_a_gradient(data, tmp_path, fusion, pooling):
    run_train(data, tmp_path, "--head-fusion", fusion, "--head-pooling", pooling, "--max-update", "1")
    predictor = sot_fairseq.from_pretrained(tmp_path, "checkpoint_last.pt")
    model, task = predictor.model.train(), predictor.task
    output, _ = model(torch.tensor([[0, 5, 6, 2], [0, 7, 2, 1]]), classification_head_name=predictor.head)
    parts = output if isinstance(output, tuple) else (output,)
    sum(torch.nn.functional.cross_entropy(part, torch.tensor([0, 1])) for part in parts).backward()
    without = [name for name, value in model.named_parameters() if value.requires_grad and value.grad is None]
    assert without == []
    assert all(value.grad.isfinite().all() for value in model.parameters() if value.grad is not None)
    assert task.label_names == ["bad", "good"]


def test_frozen_backbone_stays_and_only_the_head_learns(data, tmp_path):
    start = run_train(data, tmp_path / "start", "--max-update", "2")
    frozen = run_train(
        data,
        tmp_path / "frozen",
        *("--finetune-from-model", tmp_path / "start" / "checkpoint_last.pt"),
        *("--freeze-backbone", "--dropout", "0.5", "--max-update", "6"),
    )
    for key, value in start["model"].items():
        changed = not torch.equal(value, frozen["model"][key])
        assert changed == key.startswith("classification_heads."), key
    model = sot_fairseq.from_pretrained(tmp_path / "frozen", "checkpoint_last.pt").model.train()
    assert not model.encoder.training
    assert model.classification_heads.training


def test_the_head_learns_the_rule(data, tmp_path):
    words = ("--max-epoch", "25", "--lr", "0.01", "--dropout", "0", *BEST)
    run_train(data, tmp_path, *words)
    assert sot_fairseq.from_pretrained(tmp_path).evaluate()["accuracy"] > 90


@pytest.mark.parametrize("batch_size", ["1", "7", "16"])
def test_metrics_are_scikit_learns_over_the_whole_dev_set(data, tmp_path, batch_size, caplog):
    state = run_train(data, tmp_path, *BEST, "--max-update", "6", "--batch-size-valid", batch_size)
    predictor = sot_fairseq.from_pretrained(tmp_path, "checkpoint_last.pt")
    dataset = predictor.task_for(data).load_dataset("valid").dataset
    logits = predictor._logits_of(dataset.defn["net_input.src_tokens"].dataset, 5)
    predictions = logits.argmax(-1).numpy()
    targets = [dataset.defn["target"][row] for row in range(len(dataset))]
    assert len(targets) == 23
    logged = {"accuracy": accuracy_score, "f1": f1_score, "mcc": matthews_corrcoef}
    expected = {name: 100 * float(metric(targets, predictions)) for name, metric in logged.items()}
    assert state["extra_state"]["val_loss"] == pytest.approx(expected["accuracy"], abs=1e-9)
    assert predictor.evaluate(metrics=list(logged)) == pytest.approx(expected, abs=1e-9)
    (line,) = [record.message for record in caplog.records if record.name == "valid"]
    for name, value in expected.items():
        assert f"{name} {value:.6g}" in line


def test_regression_is_measured_by_scipys_correlations(score_data, tmp_path):
    best = ("--best-checkpoint-metric", "pearson_and_spearman", "--maximize-best-checkpoint-metric")
    words = (*best, "--regression-target", "--num-classes", "1")
    state = run_train(score_data, tmp_path, *words)
    predictor = sot_fairseq.from_pretrained(tmp_path)
    dataset = predictor.task_for(score_data).load_dataset("valid").dataset
    predictions = predictor._logits_of(dataset.defn["net_input.src_tokens"].dataset, 4)[:, 0].numpy()
    targets = [dataset.defn["target"][row][0] for row in range(len(dataset))]
    expected = 50 * (pearsonr(predictions, targets)[0] + spearmanr(predictions, targets)[0])
    assert state["extra_state"]["best"] == pytest.approx(expected, abs=1e-4)  # float32 predictions, batched otherwise
    assert min(targets) >= 0 and max(targets) <= 5  # noqa: PT018
    prediction = predictor.predict([("the cat", "a dog")])[0]
    assert isinstance(prediction.label, float)
    assert prediction.probabilities == {}


def test_sum_loss_adds_both_losses_and_needs_its_criterion(data, tmp_path):
    with pytest.raises(UsageError, match="sum_loss has two losses"):
        run_train(data, tmp_path / "stock", "--head-fusion", "sum_loss", criterion=STOCK)
    run_train(data, tmp_path / "own", "--head-fusion", "sum_loss", "--max-update", "2")
    predictor = sot_fairseq.from_pretrained(tmp_path / "own", "checkpoint_last.pt")
    task, model = predictor.task, predictor.model
    criterion = task.build_criterion(_criterion_config())
    dataset = predictor.task_for(data).load_dataset("valid")
    sample = dataset.collater([dataset[row] for row in range(4)])
    model.train()
    for module in model.modules():  # no dropout: both passes see the same
        if hasattr(module, "p"):
            module.p = 0.0
    (cls, words), _ = model(**sample["net_input"], classification_head_name=predictor.head)
    loss, size, _ = criterion(model, sample)
    targets = sample["target"].view(-1)
    expected = sum(torch.nn.functional.cross_entropy(part, targets, reduction="sum") for part in (cls, words))
    assert size == 4
    torch.testing.assert_close(loss, expected)
    together, _ = model.eval()(**sample["net_input"], classification_head_name=predictor.head)
    torch.testing.assert_close(together, (cls + words).detach())


def _criterion_config():
    from omegaconf import OmegaConf

    from sot_fairseq.criterions.sentence_prediction_mgcrp import SentencePredictionMGCrPConfig

    config = OmegaConf.structured(SentencePredictionMGCrPConfig())
    config._name = "sentence_prediction_mgcrp"
    return config


def test_no_row_is_lost_to_the_batch_size_multiple(data, tmp_path, caplog):
    """fairseq drops the last batch unless its size is a multiple of 8."""
    run_train(data, tmp_path, "--batch-size", "16", "--required-batch-size-multiple", "8")
    (line,) = [record.message for record in caplog.records if record.name == "train"]
    assert "bsz 12.2" in line  # 61 rows in batches of 16, 16, 16, 8 and 5
    assert "num_updates 5" in line
    (line,) = [record.message for record in caplog.records if record.name == "valid"]
    assert "bsz 11.5" in line  # 23 rows in batches of 16 and 7


def test_batches_hold_rows_of_like_length_and_change_every_epoch(data, tmp_path):
    run_train(data, tmp_path, "--max-update", "1")
    task = sot_fairseq.from_pretrained(tmp_path, "checkpoint_last.pt").task_for(data)
    dataset = task.load_dataset("train")

    def batches_of(iterator, epoch):
        assert task.get_batch_iterator(dataset, max_sentences=8, seed=1, epoch=epoch) is iterator  # for all epochs
        rows = [batch["id"].tolist() for batch in iterator.next_epoch_itr()]
        assert iterator.epoch == epoch
        return rows

    iterator = task.get_batch_iterator(dataset, max_sentences=8, seed=1, epoch=1)
    first, second = batches_of(iterator, 1), batches_of(iterator, 2)
    assert first != second
    task.dataset_to_epoch_iter.clear()
    iterator = task.get_batch_iterator(dataset, max_sentences=8, seed=1, epoch=2)  # as of a run that goes on
    assert batches_of(iterator, 2) == second
    lengths = dataset.dataset.sizes[0]
    assert sorted(row for batch in first for row in batch) == sorted(row for batch in second for row in batch)
    assert sorted(row for batch in first for row in batch) == list(range(61))
    grouped = sum(max(lengths[batch]) * len(batch) for batch in first)
    as_they_come = sum(max(lengths[start : start + 8]) * len(lengths[start : start + 8]) for start in range(0, 61, 8))
    assert grouped < 0.85 * as_they_come


def test_datasets_can_be_sent_to_spawned_workers(pair_data, tmp_path):
    """CASES 1."""
    run_train(pair_data, tmp_path, "--max-update", "1")
    dataset = sot_fairseq.from_pretrained(tmp_path, "checkpoint_last.pt").task_for(pair_data).load_dataset("valid")
    loader = torch.utils.data.DataLoader(
        dataset, batch_size=5, collate_fn=dataset.collater, num_workers=1, multiprocessing_context="spawn"
    )
    assert sum(batch["nsentences"] for batch in loader) == 17
    assert len(pickle.loads(pickle.dumps(dataset))) == 17


def test_long_sequences_are_cut_alike_everywhere_with_their_separators(pair_data, tmp_path, caplog):
    run_train(pair_data, tmp_path, "--max-positions", "9", "--max-update", "2")
    assert "cut to 9 tokens" in caplog.text
    predictor = sot_fairseq.from_pretrained(tmp_path, "checkpoint_last.pt")
    tokens = predictor._dataset([("the cat sees the big dog today", "a bird")])
    assert len(tokens[0]) == 9
    assert tokens[0].tolist().count(2) == 2
    assert tokens[0][-1] == 2
    assert tokens.sizes[0] == 9
    long, short = predictor.logits([("the cat sees the big dog today", "a bird"), ("the cat sees the", "a bird")])
    torch.testing.assert_close(long, short)
    with pytest.raises(UsageError, match="leaves no room"):
        run_train(pair_data, tmp_path / "short", "--max-positions", "3")


class TestLabels:
    def write(self, folder, flip):
        rows = [("the cat", "good"), ("not the dog", "bad")] * (1 if flip else 2) + [
            ("a bird", "bad" if flip else "good")
        ] * 3
        for name in ("train", "dev"):
            write_rows(folder / f"{name}.tsv", ("sentence", "label"), rows)

    def data(self, folder, labels="good,bad", flip=False):
        self.write(folder, flip)
        columns = ("--text-columns", "sentence", "--label-column", "label", "--labels", labels)
        return preprocess_folder(folder, folder / "bin", *columns)

    def test_order_does_not_depend_on_frequency(self, tmp_path):
        names = []
        for flip in (False, True):
            self.write(tmp_path / str(flip), flip)
            columns = ("--text-columns", "sentence", "--label-column", "label")
            folder = preprocess_folder(tmp_path / str(flip), tmp_path / str(flip) / "bin", *columns)
            run_train(folder, tmp_path / f"run{flip}", "--max-update", "1")
            names.append(sot_fairseq.from_pretrained(tmp_path / f"run{flip}", "checkpoint_last.pt").labels)
        assert names[0] == names[1] == ["bad", "good"]

    def test_permuted_labels_are_translated_by_name_and_other_ones_refused(self, tmp_path):
        data = self.data(tmp_path / "first")
        permuted = self.data(tmp_path / "second", "BAD,Good")
        run_train(data, tmp_path / "run", "--max-epoch", "8", "--lr", "0.02")
        predictor = sot_fairseq.from_pretrained(tmp_path / "run", "checkpoint_last.pt")
        assert predictor.labels == ["good", "bad"]
        assert predictor.evaluate(permuted) == predictor.evaluate(data)
        assert predictor.evaluate(data)["accuracy"] > 60
        other = tmp_path / "third"
        for name in ("train", "dev"):
            write_rows(other / f"{name}.tsv", ("sentence", "label"), [("the cat", "yes"), ("not a dog", "no")])
        folder = preprocess_folder(other, other / "bin", "--text-columns", "sentence", "--label-column", "label")
        with pytest.raises(UsageError, match="the checkpoint has the labels good, bad, the data no, yes"):
            predictor.evaluate(folder)

    def test_a_wrong_number_of_classes_is_named_at_the_start(self, data, tmp_path):
        with pytest.raises(UsageError, match=r"--num-classes 3, but .*label/dict.txt has 2 labels \(bad, good\)"):
            run_train(data, tmp_path, "--num-classes", "3")

    def test_an_unknown_label_names_split_row_and_value(self, data, tmp_path):
        run_train(data, tmp_path / "run", "--max-update", "1")
        predictor = sot_fairseq.from_pretrained(tmp_path / "run", "checkpoint_last.pt")
        task = predictor.task_for(data)
        task.label_dictionary.nspecial += 1  # every first label now lies before the first class
        with pytest.raises(UsageError, match=r"row \d+ of split 'valid' .*label/valid\) has the label 'bad'"):
            task.load_dataset("valid")


class TestCheckpoints:
    def test_another_head_shape_is_one_warning_or_with_strict_head_an_error(self, data, pair_data, tmp_path, caplog):
        run_train(pair_data, tmp_path / "three", "--max-update", "1")  # three classes
        start = tmp_path / "three" / "checkpoint_last.pt"
        caplog.clear()
        tuned = run_train(data, tmp_path / "two", "--finetune-from-model", start, "--max-update", "1")
        assert len(head_of(tuned)["out_proj.weight"]) == 2
        warnings = [r.message for r in caplog.records if r.levelno == logging.WARNING and "another shape" in r.message]
        assert len(warnings) == 1
        assert "out_proj.weight [3, 16] -> [2, 16]" in warnings[0]
        with pytest.raises(Exception, match="Cannot load") as caught:
            run_train(data, tmp_path / "strict", "--finetune-from-model", start, "--strict-head")
        assert "--strict-head" in str(find_usage_error(caught.value))

    def test_the_same_head_goes_on_exactly(self, data, tmp_path):
        start = run_train(data, tmp_path / "start", "--max-update", "2")
        path = tmp_path / "start" / "checkpoint_last.pt"
        tuned = run_train(data, tmp_path / "tuned", "--finetune-from-model", path, "--max-update", "1", "--lr", "0")
        assert_equal_models(start, tuned)

    @pytest.mark.parametrize("flag", ["--restore-file", "--finetune-from-model"])
    def test_a_missing_checkpoint_is_an_error_with_its_absolute_path(self, data, tmp_path, flag, monkeypatch):
        monkeypatch.chdir(tmp_path)
        with pytest.raises(UsageError, match=f"no such checkpoint: {flag} {tmp_path}/nowhere.pt"):
            run_train(data, tmp_path / "run", flag, "nowhere.pt")

    def test_other_kinds_of_files_are_named_with_the_right_command(self, data, tmp_path):
        bert = {"bert.embeddings.word_embeddings.weight": torch.zeros(3, 4)}
        torch.save(bert, tmp_path / "pytorch_model.bin")
        with pytest.raises(UsageError, match=r"Hugging Face BERT weights .* python -m sot_fairseq.convert"):
            run_train(data, tmp_path / "run", "--restore-file", tmp_path / "pytorch_model.bin")
        (tmp_path / "empty.pt").touch()
        with pytest.raises(UsageError, match=r"the file is empty"):
            run_train(data, tmp_path / "run", "--restore-file", tmp_path / "empty.pt")

    def test_missing_backbone_tensors_are_refused_unless_allowed(self, data, tmp_path, caplog):
        run_train(data, tmp_path / "start", "--max-update", "1")
        path = tmp_path / "start" / "checkpoint_last.pt"
        state = read_checkpoint(path, lazy=False)
        removed = "encoder.sentence_encoder.layers.0.fc1.weight"
        del state["model"][removed]
        torch.save(state, path)
        with pytest.raises(Exception, match="Cannot load") as caught:
            run_train(data, tmp_path / "run", "--finetune-from-model", path)
        assert f"lacks 1 of 20 backbone tensors: {removed}" in str(find_usage_error(caught.value))
        run_train(data, tmp_path / "run", "--finetune-from-model", path, "--partial-backbone", "--max-update", "1")
        assert "19 of 20 backbone tensors loaded" in caplog.text

    def test_a_checkpoint_with_more_positions_is_cut_to_max_positions(self, data, tmp_path):
        start = run_train(data, tmp_path / "start", "--max-update", "1")
        path = tmp_path / "start" / "checkpoint_last.pt"
        words = ("--finetune-from-model", path, "--max-positions", "16", "--max-update", "1", "--lr", "0")
        tuned = run_train(data, tmp_path / "run", *words)
        key = "encoder.sentence_encoder.embed_positions.weight"
        assert len(tuned["model"][key]) == 18
        assert torch.equal(tuned["model"][key], start["model"][key][:18])

    def test_another_architecture_is_named(self, data, tmp_path):
        run_train(data, tmp_path / "start", "--max-update", "1")
        path = tmp_path / "start" / "checkpoint_last.pt"
        with pytest.raises(Exception, match="Cannot load") as caught:
            run_train(data, tmp_path / "run", "--finetune-from-model", path, "--encoder-ffn-embed-dim", "24")
        assert "fc1.weight [16, 16] -> [24, 16]" in str(find_usage_error(caught.value))

    def test_stock_fairseq_loads_and_continues_our_checkpoint(self, data, tmp_path):
        """fairseq's own loader, given the checkpoint and this plug-in, restores the head and its options."""
        words = ("--head-pooling", "gcp", "--mgcrp-q", "5", "--head-fusion", "concat", "--max-update", "2")
        checkpoint = run_train(data, tmp_path, *words)
        path = str(tmp_path / "checkpoint_last.pt")
        (model,), cfg, task = checkpoint_utils.load_model_ensemble_and_task([path])
        head = model.classification_heads["sentence_classification_head"]
        assert (head.config.pooling, head.config.q_dim, head.config.fusion) == ("gcp", 5, "concat")
        assert cfg.task.head_pooling == "gcp"
        assert task.label_names == ["bad", "good"]
        for key, value in head_of(checkpoint).items():
            assert torch.equal(head.state_dict()[key], value)


class TestUsageErrors:
    @pytest.mark.parametrize(
        "words, message",
        [
            (("--best-checkpoint-metric", "accuracy"), "would keep the worst checkpoint; add"),
            (("--maximize-best-checkpoint-metric",), "would keep the worst checkpoint; leave out"),
            (("--best-checkpoint-metric", "bleu", "--maximize-best-checkpoint-metric"), "bleu is not computed by"),
            (("--svpn-alpha", "1.5"), "alpha must be in"),
            (("--svpn-values", "2"), "num_iters >= 2"),
            (("--head-dropout", "1"), "drop_rate must be in"),
            (("--spectral-norm-classification-head",), "options of fairseq's own head"),
            (("--shorten-method", "random_crop"), "--shorten-method"),
            (("--valid-subset", "nowhere"), "no data for split 'nowhere'"),
        ],
    )
    def test_options_that_cannot_work_are_named_at_the_start(self, data, tmp_path, words, message):
        with pytest.raises(UsageError, match=message):
            run_train(data, tmp_path, *words)
        assert not (tmp_path / "checkpoint_last.pt").exists()

    def test_an_arch_without_token_states(self, data, tmp_path):
        with pytest.raises(UsageError, match="--arch transformer has no token states"):
            run_train(data, tmp_path, arch="transformer")

    def test_processes_that_would_train_separate_models(self, data, tmp_path, monkeypatch):
        monkeypatch.setenv("WORLD_SIZE", "2")
        with pytest.raises(UsageError, match="2 processes were started"):
            run_train(data, tmp_path)

    def test_a_folder_without_data(self, tmp_path):
        with pytest.raises(UsageError, match=r"no dictionary: .*nothing/input0/dict.txt"):
            run_train(tmp_path / "nothing", tmp_path / "run")
