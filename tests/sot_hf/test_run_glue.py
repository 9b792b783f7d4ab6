import json
import random
import shutil
import sys

import pytest
import torch
from safetensors.torch import load_file
from transformers import AutoTokenizer, GPT2Config, GPT2Model

from sot_base.errors import UsageError, run_main
from sot_hf import SoTForSequenceClassification
from sot_hf.arguments import parse_arguments
from sot_hf.run_glue import main, run
from sot_hf.trainer import HeadTrainer
from sot_text.metrics import compute_metrics
from tests.sot_hf.conftest import sentence, write_rows
from tests.sot_hf.models import DECODER, VOCAB, randomize, tiny_model, tokenizer

QUICK = ("--use_cpu", "--disable_tqdm", "True", "--learning_rate", "3e-3", "--per_device_train_batch_size", "8")


def words(model, data, output, *more):
    return [
        str(word) for word in ("--model_name_or_path", model, "--data_dir", data, "--output_dir", output, *QUICK, *more)
    ]


def weights(folder):
    return SoTForSequenceClassification.from_pretrained(folder).state_dict()


@pytest.fixture(scope="module")
def trained(bert_folder, rte, tmp_path_factory):
    """The published command line on a tiny RTE, two epochs."""
    output = tmp_path_factory.mktemp("trained") / "OUTPUT"
    command = (
        f"--model_type bert --model_name_or_path {bert_folder} --task_name RTE --do_lower_case --do_train --do_eval "
        f"--data_dir {rte} --max_seq_length 40 --per_gpu_train_batch_size 8 --learning_rate 3e-3 "
        f"--num_train_epochs 2 --output_dir {output}/ --eval_all_checkpoints --no_cuda --disable_tqdm True"
    )
    main(command.split())
    return output


def test_published_command_line(trained):
    results = json.loads((trained / "eval_results.json").read_text())
    every = json.loads((trained / "eval_results_all.json").read_text())
    assert {name: entry["epoch"] for name, entry in every.items()} == {"checkpoint-6": 1.0, "checkpoint-12": 2.0}
    assert results["eval_accuracy"] == max(entry["eval_accuracy"] for entry in every.values())
    model = SoTForSequenceClassification.from_pretrained(trained)
    head = model.config.head
    assert (head["num_heads"], head["q_dim"], head["k_dim"], head["drop_rate"]) == (1, 56, 32, 0.8)
    assert model.config.id2label == {0: "entailment", 1: "not_entailment"}


def test_evaluates_and_predicts_a_saved_model(trained, rte, tmp_path, capsys):
    output = tmp_path / "predictions"
    main(words(trained, rte, output, "--task_name", "rte", "--do_eval", "--do_predict"))
    results = json.loads((output / "eval_results.json").read_text())
    assert results["eval_accuracy"] == json.loads((trained / "eval_results.json").read_text())["eval_accuracy"]
    lines = (output / "RTE.tsv").read_text().splitlines()
    assert lines[0] == "index\tprediction"
    assert [line.split("\t")[0] for line in lines[1:]] == ["0", "1", "2", "3", "4"]
    model, encode = SoTForSequenceClassification.from_pretrained(trained), AutoTokenizer.from_pretrained(trained)
    for line, row in zip(lines[1:], (rte / "test.tsv").read_text().splitlines()[1:], strict=True):
        with torch.no_grad():
            logits = model(**encode(*row.split("\t")[1:3], return_tensors="pt")).logits
        assert line.split("\t")[1] == model.config.id2label[int(logits.argmax())]
    assert "RTE: accuracy" in capsys.readouterr().out


def test_other_order_and_case_of_labels_are_told_by_name(trained, rte, tmp_path):
    folder = tmp_path / "own"
    folder.mkdir()
    for name in ("train", "dev"):
        text = (rte / f"{name}.tsv").read_text()
        text = text.replace("\tnot_entailment", "\tNot_Entailment").replace("\tentailment", "\tENTAILMENT")
        (folder / f"{name}.tsv").write_text(text)
    own = ("--text_columns", "sentence1,sentence2", "--label-column", "label", "--labels", "Not_Entailment,ENTAILMENT")
    main(words(trained, folder, tmp_path / "out", *own, "--do_eval"))
    results = json.loads((tmp_path / "out" / "eval_results.json").read_text())
    assert results["eval_accuracy"] == json.loads((trained / "eval_results.json").read_text())["eval_accuracy"]


def test_other_labels_start_a_new_head(trained, rte, tmp_path, caplog):
    folder = tmp_path / "own"
    folder.mkdir()
    for name in ("train", "dev"):
        text = (rte / f"{name}.tsv").read_text()
        (folder / f"{name}.tsv").write_text(text.replace("\tnot_entailment", "\tno").replace("\tentailment", "\tyes"))
    own = ("--text_columns", "sentence1,sentence2", "--label_column", "label")
    with pytest.raises(UsageError, match="labels entailment, not_entailment -> no, yes"):
        main(words(trained, folder, tmp_path / "out", *own, "--do_eval"))
    with pytest.raises(UsageError, match="other labels"):
        main(words(trained, folder, tmp_path / "out", *own, "--do_train", "--strict_head"))
    main(words(trained, folder, tmp_path / "out", *own, "--do_train", "--max_steps", "1", "--save_strategy", "no"))
    assert sum("the whole head is re-initialised" in message for message in caplog.messages) == 1
    assert SoTForSequenceClassification.from_pretrained(tmp_path / "out").config.id2label == {0: "no", 1: "yes"}


@pytest.fixture
def evaluations(monkeypatch):
    counted, loop = [], HeadTrainer.evaluation_loop
    monkeypatch.setattr(HeadTrainer, "evaluation_loop", lambda self, *a, **k: counted.append(1) or loop(self, *a, **k))
    return counted


def check_results(folder, rte, *options):
    """The results of a run are those of its saved model."""
    again = folder.with_name(f"{folder.name}-again")
    main(words(folder, rte, again, "--task_name", "RTE", "--do_eval", *options))
    found, expected = (json.loads((path / "eval_results.json").read_text()) for path in (folder, again))
    for name in ("eval_loss", "eval_accuracy"):
        assert found[name] == pytest.approx(expected[name], rel=1e-5)


def test_the_weights_of_the_last_step_are_evaluated_once(bert_folder, rte, tmp_path, evaluations):
    counts = {}  # by the step of the best model: after one of two epochs, or the other
    for largest in ("True", "False"):
        options = ("--num_train_epochs", "2", "--metric_for_best_model", "eval_loss", "--greater_is_better", largest)
        main(words(bert_folder, rte, tmp_path / largest, "--task_name", "RTE", "--do_train", "--do_eval", *options))
        best = json.loads((tmp_path / largest / "trainer_state.json").read_text())["best_global_step"]
        counts[best] = len(evaluations)
        check_results(tmp_path / largest, rte)
        evaluations.clear()
    assert counts == {6: 3, 12: 2}


@pytest.mark.parametrize(
    "options, evaluation",
    [
        (  # the last evaluation is better, by less than the threshold: it stops the training, and is not saved
            "--num_train_epochs 5 --eval_strategy steps --eval_steps 3 --eval_delay 5 --save_steps 6 "
            "--metric_for_best_model eval_loss --greater_is_better {} --early_stopping_patience 1 "
            "--early_stopping_threshold 10",
            "",
        ),
        ("--num_train_epochs 2 --load_best_model_at_end False", "--bf16_full_eval"),
    ],
)
@pytest.mark.parametrize("largest", [True, False])
def test_other_weights_or_precisions_are_evaluated(
    options, evaluation, largest, bert_folder, rte, tmp_path, evaluations
):
    command = ("--task_name", "RTE", "--do_train", "--do_eval", *options.format(largest).split(), *evaluation.split())
    main(words(bert_folder, rte, tmp_path / "out", *command))
    assert len(evaluations) == 3
    check_results(tmp_path / "out", rte, *evaluation.split())


@pytest.mark.parametrize("epochs, stop", [(2, 6), (1, 3), (2, 9)])
def test_resumed_run_equals_an_uninterrupted_one(epochs, stop, bert_folder, rte, tmp_path):
    command = ("--task_name", "RTE", "--do_train", "--do_eval", "--num_train_epochs", epochs, "--save_steps", "3")
    command += ("--eval_all_checkpoints", "--head-dropout", "0.3")
    whole, broken = tmp_path / "whole", tmp_path / "broken"
    main(words(bert_folder, rte, whole, *command))
    shutil.copytree(whole / f"checkpoint-{stop}", broken / f"checkpoint-{stop}")
    (broken / "checkpoint-99").mkdir()  # half written when the run was killed
    with pytest.raises(UsageError, match="--resume_from_checkpoint last"):
        main(words(bert_folder, rte, broken, *command))
    main(words(bert_folder, rte, broken, *command, "--resume_from_checkpoint", "last"))
    last = f"checkpoint-{6 * epochs}"
    for key, value in weights(whole / last).items():
        assert torch.equal(value, weights(broken / last)[key]), key


def test_regression_on_own_data(bert_folder, tmp_path):
    rng = random.Random(5)
    for name, count in (("train", 40), ("dev", 12), ("test", 3)):
        texts = [sentence(rng) for _ in range(count)]
        write_rows(tmp_path / f"{name}.tsv", ("text", "score"), [(text, f"{len(text) / 10:.2f}") for text in texts])
    own = "--text-columns text --label-column score --regression --head_fusion words --mgcrp_q 5"
    run = "--do_train --do_eval --do_predict --num_train_epochs 20"
    command = words(bert_folder, tmp_path, tmp_path / "out", *own.split(), *run.split())
    command[command.index("--learning_rate") + 1] = "1e-2"
    main(command)
    results = json.loads((tmp_path / "out" / "eval_results.json").read_text())
    assert results["eval_pearson"] > 0.7
    config = SoTForSequenceClassification.from_pretrained(tmp_path / "out").config
    assert (config.problem_type, config.num_labels) == ("regression", 1)
    assert (config.head["fusion"], config.head["q_dim"]) == ("words", 5)
    numbers = [float(line.split("\t")[1]) for line in (tmp_path / "out" / "custom.tsv").read_text().splitlines()[1:]]
    assert len(numbers) == 3


def test_predictions_are_in_the_order_of_the_rows(tmp_path):
    randomize(tiny_model("bert", num_labels=1, problem_type="regression")).save_pretrained(tmp_path / "model")
    tokenizer().save_pretrained(tmp_path / "model")
    rng = random.Random(9)
    texts = [sentence(rng) for _ in range(40)]
    write_rows(tmp_path / "test.tsv", ("text",), [(text,) for text in texts])
    own = ("--text_columns", "text", "--label_column", "score", "--regression", "--do_predict")
    main(words(tmp_path / "model", tmp_path, tmp_path / "out", *own, "--per_device_eval_batch_size", "4"))
    found = [float(line.split("\t")[1]) for line in (tmp_path / "out" / "custom.tsv").read_text().splitlines()[1:]]
    model, encode = SoTForSequenceClassification.from_pretrained(tmp_path / "model"), tokenizer()
    with torch.no_grad():
        expected = [model(**encode(text, return_tensors="pt")).logits.item() for text in texts]
    assert max(expected) - min(expected) > 0.1
    assert found == pytest.approx(expected, abs=1e-3)


def test_both_dev_files_of_mnli(trained, tmp_path, bert_folder):
    rng = random.Random(7)
    labels = ["entailment", "neutral", "contradiction"]
    rows = {name: [(sentence(rng), sentence(rng), rng.choice(labels)) for _ in range(12)] for name in ("a", "b", "c")}
    for file, name in (("train", "a"), ("dev_matched", "b"), ("dev_mismatched", "c"), ("test_mismatched", "c")):
        write_rows(tmp_path / f"{file}.tsv", ("sentence1", "sentence2", "gold_label"), rows[name])
    output = tmp_path / "out"
    more = (
        "--do_train",
        "--do_eval",
        "--do_predict",
        "--max_steps",
        "2",
        "--save_strategy",
        "no",
        "--eval_strategy",
        "no",
    )
    main(words(bert_folder, tmp_path, output, "--task_name", "MNLI", *more, "--mgcrp-q", "4", "--freeze_backbone"))
    results = json.loads((output / "eval_results.json").read_text())
    predicted = [line.split("\t")[1] for line in (output / "MNLI-mm.tsv").read_text().splitlines()[1:]]
    right = sum(guess == row[2] for guess, row in zip(predicted, rows["c"], strict=True))
    assert results["eval_mm_accuracy"] == pytest.approx(right / 12)
    assert "eval_accuracy" in results
    assert not (output / "MNLI-m.tsv").exists()
    config = SoTForSequenceClassification.from_pretrained(output).config
    assert (config.head["q_dim"], config.head["k_dim"], config.freeze_backbone) == (4, 48, True)


def test_decoder_learns_tokens_for_start_delimiter_and_end(rte, tmp_path):
    source = tmp_path / "gpt2"
    GPT2Model(GPT2Config(**DECODER)).save_pretrained(source)
    plain = tokenizer(pad_token=None, cls_token=None, sep_token=None, mask_token=None)
    plain.save_pretrained(source)
    main(
        words(source, rte, tmp_path / "out", "--task_name", "RTE", "--do_train", "--do_eval", "--num_train_epochs", "1")
    )
    encode = AutoTokenizer.from_pretrained(tmp_path / "out")
    ids = encode("the cat", "a dog")["input_ids"]
    tokens = encode.convert_ids_to_tokens(ids)
    assert tokens == ["<|start|>", "the", "cat", "<|delimiter|>", "a", "dog", "<|extract|>"]
    model = SoTForSequenceClassification.from_pretrained(tmp_path / "out")
    assert model.backbone.wte.num_embeddings == len(VOCAB) + 3
    again = json.loads((tmp_path / "out" / "eval_results.json").read_text())["eval_accuracy"]
    main(words(tmp_path / "out", rte, tmp_path / "eval", "--task_name", "RTE", "--do_eval"))
    assert json.loads((tmp_path / "eval" / "eval_results.json").read_text())["eval_accuracy"] == again


def test_long_rows_are_cut_with_their_separators(bert_folder, tmp_path, caplog):
    caplog.set_level("INFO")
    long, short = " ".join(["cat"] * 50), "a dog"
    for name in ("train", "dev"):
        write_rows(tmp_path / f"{name}.tsv", ("a", "b", "label"), [(long, short, "x"), (short, long, "y")] * 4)
    own = ("--text_columns", "a,b", "--label_column", "label")
    main(
        words(bert_folder, tmp_path, tmp_path / "out", *own, "--do_train", "--max_steps", "1", "--save_strategy", "no")
    )
    assert any("8 of 8 samples shortened to 40 tokens" in message for message in caplog.messages)
    for length in (64, 4):
        with pytest.raises(UsageError, match=f"--max_seq_length {length}, but the model takes 5 to 40 tokens"):
            main(words(bert_folder, tmp_path, tmp_path / "o2", *own, "--do_train", "--max_seq_length", length))


@pytest.mark.parametrize(
    "more, message",
    [
        (("--task_name", "RTE"), "nothing to do"),
        (("--task_name", "ROTE", "--do_eval"), "no such task"),
        (("--do_eval",), "no task"),
        (("--task_name", "RTE", "--do_train", "--head-lr-scale", "0"), "not a positive number: --head_lr_scale 0"),
        (("--task_name", "RTE", "--do_eval"), "a backbone without a trained head"),
        (("--task_name", "CoLA", "--do_train"), "unknown label 'sentence1'"),
        (("--task_name", "RTE", "--do_train", "--head-fusion", "sum_loss", "--svpn-alpha", "2"), "alpha"),
        (("--task_name", "RTE", "--do_train", "--model_type", "roberta"), "a bert where --model_type roberta"),
        (("--task_name", "RTE", "--do_train", "--do_eval", "--metric_for_best_model", "f1"), "does not report f1"),
        (("--task_name", "RTE", "--do_train", "--resume_from_checkpoint", "last"), "no checkpoint to resume from"),
        (("--text_columns", "sentence1", "--label_column", "index", "--regression", "--do_train",
          "--label_smoothing_factor", "0.1"), "a regression has no classes to smooth"),
    ],
)  # fmt: skip
def test_mistakes(more, message, bert_folder, rte, tmp_path):
    with pytest.raises(UsageError, match=message):
        main(words(bert_folder, rte, tmp_path / "out", *more))
    assert not (tmp_path / "out").exists()


def test_trainings_that_cannot_start(rte, tmp_path):
    tiny_model("openai-gpt", num_labels=2, id2label={0: "entailment", 1: "not_entailment"}).save_pretrained(tmp_path)
    tokenizer().save_pretrained(tmp_path)
    command = words(tmp_path, rte, tmp_path / "out", "--task_name", "RTE", "--do_train")
    with pytest.raises(UsageError, match="openai-gpt has no gradient checkpointing"):
        main([*command, "--gradient_checkpointing"])
    with pytest.raises(UsageError, match="foo is not supported"):
        main([*command, "--report_to", "foo"])


def test_models_that_are_absent_or_broken(bert_folder, rte, tmp_path, monkeypatch):
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    (tmp_path / "empty").mkdir()
    with pytest.raises(UsageError, match="cannot load the model"):
        main(words(tmp_path / "empty", rte, tmp_path / "out", "--task_name", "RTE", "--do_train"))
    shutil.copy(bert_folder / "config.json", tmp_path / "empty")
    with pytest.raises(UsageError, match="cannot load the weights"):
        main(words(tmp_path / "empty", rte, tmp_path / "out", "--task_name", "RTE", "--do_train"))


def test_spanberts_archive(bert_folder, rte, tmp_path, caplog):
    """pytorch_model.bin with prefixes, a config.json without a model type, and no vocabulary."""
    source = tmp_path / "spanbert"
    source.mkdir()
    config = json.loads((bert_folder / "config.json").read_text())
    (source / "config.json").write_text(json.dumps({k: v for k, v in config.items() if k != "model_type"}))
    tensors = load_file(bert_folder / "model.safetensors")
    torch.save({f"bert.{name}": tensor for name, tensor in tensors.items()}, source / "pytorch_model.bin")
    more = ("--task_name", "RTE", "--do_train", "--max_steps", "1", "--save_strategy", "no", "--learning_rate", "0")
    more += ("--model_type", "spanbert", "--head-fusion", "cls")
    vocab = tmp_path / "vocab"
    vocab.mkdir()
    (vocab / "vocab.txt").write_text("\n".join([*VOCAB[:-1], "Cased"]) + "\n")
    with pytest.raises(UsageError, match="--tokenizer_name"):
        main(words(source, rte, tmp_path / "out", *more))
    shutil.copy(bert_folder / "config.json", vocab)
    (tmp_path / "large").mkdir()
    (tmp_path / "large" / "vocab.txt").write_text("\n".join([*VOCAB, "more"]) + "\n")
    shutil.copy(bert_folder / "config.json", tmp_path / "large")
    with pytest.raises(UsageError, match="the tokenizer has 19 tokens, the model 18"):
        main(words(source, rte, tmp_path / "out", *more, "--tokenizer_name", tmp_path / "large"))
    main(words(source, rte, tmp_path / "out", *more, "--tokenizer_name", vocab, "--do_lower_case"))
    saved = weights(tmp_path / "out")
    assert all(torch.equal(saved[f"backbone.{name}"], tensors[name]) for name in tensors if "pooler" not in name)
    assert torch.equal(saved["classifier.dense.weight"], tensors["pooler.dense.weight"])
    assert any("--do_lower_case is ignored" in message for message in caplog.messages)
    assert AutoTokenizer.from_pretrained(tmp_path / "out").tokenize("Cased") == ["Cased"]


def test_help(capsys):
    with pytest.raises(SystemExit):
        main(["--help"])
    shown = capsys.readouterr().out
    assert "--head-fusion" in shown
    assert "--eval_all_checkpoints" in shown


def test_given_options_are_kept(tmp_path):
    base = ["--model_name_or_path", "m", "--data_dir", "d", "--output_dir", str(tmp_path), "--do_train", "--use_cpu"]
    options = parse_arguments([*base, "--do_eval"])
    training = options.training
    assert (training.eval_strategy, training.save_strategy) == ("epoch", "epoch")
    assert training.load_best_model_at_end
    assert training.save_total_limit == 2
    assert training.ddp_find_unused_parameters is False
    assert training.train_sampling_strategy == "group_by_length"
    assert options.head == {}
    options = parse_arguments(
        [*base, "--save_steps=50", "--mgcrp_center", "none", "--svpn_values=2", "--svpn-iters", "3"]
    )
    training = options.training
    assert (training.save_strategy, training.save_steps, training.eval_strategy) == ("steps", 50, "no")
    assert not training.load_best_model_at_end
    assert options.head == {"center": None, "num_singular_values": 2, "num_iters": 3}
    assert parse_arguments([*base, "--metric_for_best_model", "loss"]).training.metric_for_best_model == "eval_loss"


@pytest.mark.parametrize(
    "more, message",
    [
        ("--learning_rat 1", "unknown option --learning_rat: .*did you mean --learning_rate"),
        ("--mgcrp-qq=1", "did you mean --mgcrp-q?"),
        ("--head-drop 0.1", "did you mean --head-dropout?"),
        ("--mgcrp-q many", "argument --mgcrp-q: invalid int value: 'many'"),
        ("--head-fusion sum", "invalid choice: 'sum'"),
        ("--per_gpu_train_batch_size 0", "--per_device_train_batch_size 0 is out of range"),
        ("--learning_rate nan", "--learning_rate nan is out of range"),
        ("--max_eval_samples -3", "--max_eval_samples -3 is out of range"),
        ("--num_train_epochs 0", "no training: --num_train_epochs 0"),
        ("--eval_all_checkpoints", "no evaluation requested"),
        ("--load_best_model_at_end True", "the options do not fit together"),
    ],
)  # fmt: skip
def test_options_that_make_no_sense(more, message, tmp_path):
    base = ["--model_name_or_path", "m", "--data_dir", "d", "--output_dir", str(tmp_path), "--do_train", "--use_cpu"]
    with pytest.raises(UsageError, match=message) as error:
        parse_arguments([*base, *more.split()])
    assert "\n" not in str(error.value)


def test_usage_errors_end_with_status_2(tmp_path, monkeypatch, capsys):
    command = words("m", tmp_path, tmp_path / "out", "--task_name", "RTE", "--do_eval")
    monkeypatch.setattr(sys, "argv", ["run_glue.py", *command])
    with pytest.raises(SystemExit) as end:
        run_main(main)
    assert end.value.code == 2
    assert capsys.readouterr().err.startswith("error: no train.tsv, dev.tsv, test.tsv")


def test_metrics_are_of_the_whole_dev_set(trained, rte, tmp_path):
    accuracies = set()
    for size in ("1", "7"):
        options = parse_arguments(
            words(
                trained, rte, tmp_path / size, "--task_name", "RTE", "--do_eval", "--per_device_eval_batch_size", size
            )
        )
        accuracies.add(run(options)["eval_accuracy"])
    assert len(accuracies) == 1
    assert compute_metrics(["accuracy"], [1], [1]) == {"accuracy": 1.0}
