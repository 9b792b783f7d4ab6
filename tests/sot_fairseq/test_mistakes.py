"""What a user may get wrong, or a machine may do to a run, and what is said then."""

import re
import shutil

import pytest
import torch

import sot_fairseq
from sot_base.errors import UsageError, run_main
from sot_base.safe_checkpoint import read_checkpoint
from sot_fairseq.fairseq_patches.divergence import NonFiniteFinder
from sot_fairseq.fairseq_patches.usage_errors import find_usage_error
from tests.sot_fairseq.conftest import run_train

HEAD = "classification_heads.sentence_classification_head"


@pytest.fixture(scope="module")
def trained(data, tmp_path_factory):
    folder = tmp_path_factory.mktemp("trained")
    run_train(data, folder, "--max-update", "3")
    return folder


class TestStart:
    @pytest.mark.parametrize(
        "flag", ["--fp16", "--bf16", "--amp", "--memory-efficient-fp16", "--memory-efficient-bf16"]
    )
    def test_half_precision_on_the_cpu(self, data, tmp_path, flag):
        kind = flag.removeprefix("--memory-efficient-")
        with pytest.raises(UsageError, match=f"{kind} with --cpu: fairseq trains in half precision on a GPU only"):
            run_train(data, tmp_path, flag)

    @pytest.mark.parametrize("size", [0, 3000])
    def test_a_half_written_checkpoint_to_go_on_from(self, data, trained, tmp_path, size):
        content = (trained / "checkpoint_last.pt").read_bytes()[:size]
        (tmp_path / "checkpoint_last.pt").write_bytes(content)
        with pytest.raises(
            UsageError, match=r"cannot resume: .*checkpoint_last\.pt; .* remove it to start from scratch"
        ):
            run_train(data, tmp_path)
        assert (tmp_path / "checkpoint_last.pt").read_bytes() == content

    @pytest.mark.parametrize(
        "words, message",
        [
            (("--max-tokens-valid", "99"), "of split 'train' has .* tokens, a batch at most 5: --max-tokens; give"),
            ((), "of split 'valid' has .* tokens, a batch at most 5: --max-tokens or --max-tokens-valid; give"),
        ],
    )
    def test_a_row_longer_than_a_batch_may_be(self, data, tmp_path, words, message):
        with pytest.raises(UsageError, match=message):
            run_train(data, tmp_path, "--max-tokens", "5", *words)
        assert not (tmp_path / "checkpoint_last.pt").exists()

    def test_batches_by_tokens(self, data, tmp_path):
        assert run_train(data, tmp_path, "--max-tokens", "60")["optimizer_history"][-1]["num_updates"] > 5

    def test_no_criterion_for_the_task(self, data, tmp_path):
        with pytest.raises(Exception, match="classification_head_name") as caught:
            run_train(data, tmp_path, criterion="cross_entropy")
        assert "--criterion; give sentence_prediction_mgcrp" in str(find_usage_error(caught.value))

    def test_a_save_dir_that_cannot_be(self, data, tmp_path):
        (tmp_path / "file").touch()
        with pytest.raises(OSError, match="Not a directory") as caught:
            run_train(data, tmp_path / "file" / "run")
        mistake = find_usage_error(caught.value)
        assert str(mistake) == f"Not a directory: {tmp_path}/file/run; check the path and who may write there"

    def test_a_command_of_the_toolkit_that_cannot_write(self, tmp_path, capsys):
        with pytest.raises(SystemExit) as caught:
            run_main(lambda: (tmp_path / "gone" / "file").write_text(""))
        assert caught.value.code == 2
        message = f"error: No such file or directory: {tmp_path}/gone/file; check the path and who may write there\n"
        assert capsys.readouterr().err == message

    def test_other_errors_keep_their_traceback(self):
        assert find_usage_error(KeyError("criterion.")) is None
        assert find_usage_error(OSError("no path")) is None


class TestNotFinite:
    @pytest.mark.parametrize(
        "value, tensor, found",
        [
            (float("nan"), "encoder.sentence_encoder.layers.0.fc1.weight", "NaN in the output of {} "),
            (float("inf"), f"{HEAD}.out_proj.weight", "infinity in the output of {} "),
        ],
    )
    def test_the_module_is_named_and_the_training_ends(self, data, trained, tmp_path, value, tensor, found):
        state = read_checkpoint(trained / "checkpoint_last.pt", lazy=False)
        state["model"][tensor][0, 0] = value
        torch.save(state, tmp_path / "broken.pt")
        with pytest.raises(UsageError, match="the training diverged") as caught:
            run_train(data, tmp_path / "run", "--restore-file", str(tmp_path / "broken.pt"), "--max-update", "9")
        assert found.format(tensor.removesuffix(".weight")) in str(caught.value)
        assert not list((tmp_path / "run").glob("*.pt"))

    @pytest.mark.parametrize(
        "value, more",
        [("NaN", ()), ("NaN", ("--disable-validation",)), ("infinity", ("--use-old-adam",))],  # fused: 0 * infinity
    )
    def test_weights_after_a_finite_step(self, data, tmp_path, value, more):
        with pytest.raises(UsageError) as caught:
            run_train(data, tmp_path, "--lr", "1e39", "--max-update", "1", *more)
        found = f"{value} in the weights of encoder.sentence_encoder.embed_tokens (Embedding)"
        advice = "lower --lr, warm up for longer or give --clip-norm; no checkpoint was written yet"
        assert str(caught.value) == f"the training diverged, {found}: epoch 1, update 1, lr 1e+39; {advice}"
        assert not list(tmp_path.glob("*.pt"))

    def test_the_last_good_checkpoint_is_named_and_stays(self, data, trained, tmp_path):
        shutil.copytree(trained, tmp_path / "run")
        before = {path.name: path.read_bytes() for path in (tmp_path / "run").glob("*.pt")}
        with pytest.raises(UsageError, match="the training diverged, ") as caught:
            run_train(data, tmp_path / "run", "--lr", "1e39", "--max-epoch", "2")
        last = tmp_path / "run" / "checkpoint_last.pt"
        assert str(caught.value).endswith(f"; the last good checkpoint is {last} (epoch 1 @ 3 updates)")
        assert re.search(r": epoch 1, update [45], lr 1e\+39; lower --lr", str(caught.value))
        assert {path.name: path.read_bytes() for path in (tmp_path / "run").glob("*.pt")} == before

    def test_a_gradient_alone(self):
        class Steep(torch.nn.Module):
            def forward(self, x):
                return (x * 0).sqrt()

        model = torch.nn.Sequential(torch.nn.Linear(2, 2), Steep(), torch.nn.Linear(2, 2))
        with pytest.raises(UsageError, match=r"NaN in the gradient of 1 \(Steep\)"), NonFiniteFinder(model):
            model(torch.ones(1, 2)).sum().backward()

    def test_nothing_found_is_no_error(self):
        model = torch.nn.Linear(2, 2)
        with NonFiniteFinder(model):
            model(torch.ones(1, 2)).sum().backward()
        assert not model._forward_hooks
        assert not model._backward_hooks

    def overflow(self, monkeypatch, steps):
        """Let gradients overflow in the first steps, as fairseq's fp16 optimizer reports it, which needs a GPU."""
        from fairseq.trainer import Trainer

        clip, left = Trainer.clip_grad_norm, list(range(steps))

        def clip_grad_norm(self, norm):
            if left:
                left.pop()
                raise OverflowError("setting loss scale to 64")
            return clip(self, norm)

        monkeypatch.setattr(Trainer, "clip_grad_norm", clip_grad_norm)
        monkeypatch.setattr(torch.Tensor, "cuda", lambda self: self)

    def test_skipped_steps_are_counted(self, data, tmp_path, monkeypatch, caplog):
        self.overflow(monkeypatch, 2)
        state = run_train(data, tmp_path, "--max-epoch", "1")
        assert state["optimizer_history"][-1]["num_updates"] == 7  # 61 rows: 9 steps
        assert any("skipped 2" in message for message in caplog.messages)

    def test_a_run_of_skipped_steps_fails(self, data, tmp_path, monkeypatch):
        self.overflow(monkeypatch, 1000)
        with pytest.raises(UsageError, match="the gradients of all 9 steps overflowed and nothing was learned"):
            run_train(data, tmp_path, "--max-epoch", "1")
        assert not (tmp_path / "checkpoint_last.pt").exists()


class TestPrediction:
    @pytest.mark.parametrize(
        "sentences, message",
        [
            (None, "expected a list of texts, got None"),
            (3, "expected a list of texts, got 3"),
            ("the cat", "expected a list of texts, got 'the cat'"),
            ([None], r"got \(None,\): row 0"),
            (["a", 3.5], r"got \(3.5,\): row 1"),
            ([b"the cat"], r"got \(b'the cat',\): row 0"),
            ([("a", "b")], r"expected 1 text\(s\), got \('a', 'b'\): row 0"),
        ],
    )
    def test_what_is_no_text(self, trained, sentences, message):
        with pytest.raises(UsageError, match=message):
            sot_fairseq.from_pretrained(trained).predict(sentences)

    def test_any_iterable_of_texts(self, trained):
        predictor = sot_fairseq.from_pretrained(trained)
        assert predictor.predict(text for text in ["the cat"]) == predictor.predict(["the cat"])
        assert predictor.predict(()) == []

    @pytest.mark.parametrize("size", [0, -1])
    def test_batch_size(self, trained, size):
        with pytest.raises(UsageError, match="batch_size must be positive"):
            sot_fairseq.from_pretrained(trained).predict(["the cat"], batch_size=size)

    def test_data_with_other_labels(self, trained, pair_data):
        with pytest.raises(UsageError, match="the checkpoint has the labels bad, good, the data maybe, no, yes"):
            sot_fairseq.from_pretrained(trained).evaluate(pair_data)

    def test_special_tokens_are_in_the_checkpoint(self, trained, tmp_path):
        """A folder without preprocess.json must not predict something else."""
        folder = shutil.copytree(trained, tmp_path / "copy")
        (folder / "preprocess.json").unlink()
        expected = sot_fairseq.from_pretrained(trained).logits(["the cat", ""])
        assert torch.equal(sot_fairseq.from_pretrained(folder).logits(["the cat", ""]), expected)

    def test_no_dictionary(self, trained, tmp_path):
        state = read_checkpoint(trained / "checkpoint_last.pt", lazy=False)
        state["cfg"]["task"]["data"] = "/nowhere"
        torch.save(state, tmp_path / "checkpoint_last.pt")
        with pytest.raises(UsageError, match=f"no dictionary beside the checkpoint: {tmp_path}/input0/dict.txt; copy"):
            sot_fairseq.from_pretrained(tmp_path)
