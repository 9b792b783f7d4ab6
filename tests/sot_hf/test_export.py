import pytest
import torch
from torch.testing import assert_close

from sot_base.errors import UsageError
from sot_hf.export import example_inputs, main
from tests.sot_hf.models import randomize, tiny_model

onnxruntime = pytest.importorskip("onnxruntime")
pytest.importorskip("onnxscript")


@pytest.mark.parametrize(
    "kind, head",
    [("bert", {}), ("gpt2", {}), ("bert", {"pooling": "attention", "num_heads": 2, "feature_norm": "batch_norm"})],
)
def test_onnx_gives_the_models_logits(kind, head, tmp_path, capsys):
    model = randomize(tiny_model(kind, layers=1, head=head))
    model.save_pretrained(tmp_path / "model")
    path = tmp_path / "model.onnx"
    main([str(tmp_path / "model"), "--output", str(path)])
    assert str(path) in capsys.readouterr().out
    session = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])

    def run(inputs):
        return torch.from_numpy(session.run(["logits"], {name: t.numpy() for name, t in inputs.items()})[0])

    for rows, length in ((1, 5), (4, 12)):
        inputs = example_inputs(model, rows, length)
        with torch.no_grad():
            assert_close(run(inputs), model(**inputs).logits, rtol=0, atol=1e-4)
    assert ("token_type_ids" in inputs) == (kind == "bert")
    changed = {**inputs, "input_ids": inputs["input_ids"].clone()}
    changed["input_ids"][-1, -2:] = 7  # padding
    assert_close(run(changed), run(inputs), rtol=0, atol=1e-5)
    alone = {name: tensor[-1:, :-2] for name, tensor in inputs.items()}
    assert_close(run(alone), run(inputs)[-1:], rtol=0, atol=1e-5)


@pytest.mark.parametrize("head, more", [({"normalization": "svpn_exact"}, ()), ({}, ("--opset", "17"))])
def test_what_cannot_be_exported(head, more, tmp_path):
    tiny_model("bert", layers=1, head=head).save_pretrained(tmp_path / "model")
    with pytest.raises(UsageError, match=r"torch cannot write bert and the head|give --opset 18 or more"):
        main([str(tmp_path / "model"), "--output", str(tmp_path / "model.onnx"), *more])
    assert [path.name for path in tmp_path.iterdir()] == ["model"]


def test_a_backbone_is_no_classifier(bert_folder, tmp_path):
    with pytest.raises(UsageError, match="no trained head"):
        main([str(bert_folder), "--output", str(tmp_path / "model.onnx")])
