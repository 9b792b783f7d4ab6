import pytest
import torch
from torch.testing import assert_close
from transformers import Trainer, TrainingArguments

from sot_hf import SoTForSequenceClassification
from tests.sot_hf.models import batch, randomize, tiny_model

peft = pytest.importorskip("peft")


@pytest.mark.parametrize("kind, targets", [("bert", ["query", "value"]), ("gpt2", ["c_attn"])])
def test_lora_on_the_backbone_and_the_whole_head(kind, targets, tmp_path):
    randomize(tiny_model(kind)).save_pretrained(tmp_path / "base")
    base = SoTForSequenceClassification.from_pretrained(tmp_path / "base")
    settings = peft.LoraConfig(task_type="SEQ_CLS", r=2, target_modules=targets)
    model = peft.get_peft_model(base, settings)
    trained = {name for name, parameter in model.named_parameters() if parameter.requires_grad}
    assert all("lora_" in name or ".classifier.modules_to_save." in name for name in trained)
    assert sum("classifier" in name for name in trained) == len(list(base.classifier.original_module.parameters()))
    rows = batch()
    data = [{name: tensor[i] for name, tensor in rows.items()} for i in range(6)]
    arguments = TrainingArguments(
        output_dir=str(tmp_path / "out"), max_steps=8, learning_rate=1e-2, use_cpu=True, disable_tqdm=True,
        logging_steps=1, per_device_train_batch_size=6, save_strategy="no", gradient_checkpointing=True,
    )  # fmt: skip
    trainer = Trainer(model, arguments, train_dataset=data)
    trainer.train()
    losses = [entry["loss"] for entry in trainer.state.log_history if "loss" in entry]
    assert losses[-1] < losses[0]
    model.eval().save_pretrained(tmp_path / "adapter")
    fresh = SoTForSequenceClassification.from_pretrained(tmp_path / "base")
    loaded = peft.PeftModel.from_pretrained(fresh, tmp_path / "adapter").eval()
    with torch.no_grad():
        assert_close(loaded(**rows).logits, model(**rows).logits)
        merged = loaded.merge_and_unload()
        assert_close(merged(**rows).logits, model(**rows).logits, rtol=1e-4, atol=1e-5)
    merged.save_pretrained(tmp_path / "merged")
    again = SoTForSequenceClassification.from_pretrained(tmp_path / "merged")
    with torch.no_grad():
        assert_close(again(**rows).logits, merged(**rows).logits)


def test_lora_on_a_backbone_that_was_saved_frozen(tmp_path):
    tiny_model("bert", freeze_backbone=True).save_pretrained(tmp_path)
    base = SoTForSequenceClassification.from_pretrained(tmp_path)
    model = peft.get_peft_model(base, peft.LoraConfig(task_type="SEQ_CLS", r=2, target_modules=["query"]))
    model.train()(**batch()).loss.backward()
    learning = {name: parameter.grad for name, parameter in model.named_parameters() if parameter.requires_grad}
    assert any("lora_" in name for name in learning)
    assert [name for name, gradient in learning.items() if gradient is None] == []
