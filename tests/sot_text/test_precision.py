"""Reduced precision: what differs from float32 is told once, and what cannot run is refused."""

import pytest
import torch
from torch import nn

from sot_base.errors import UsageError
from sot_text.precision import COMPARED, ComparedPredictor, compare_predictions, forward_in, quantized
from sot_text.prediction import Prediction


class Numbers:
    """A regression that predicts the same number for every row, and counts the rows."""

    labels, num_inputs = [], 1

    def __init__(self, number):
        self.number, self.rows = number, []

    def predict(self, sentences, batch_size, threshold):
        self.rows.append(len(sentences))
        return [Prediction(self.number, {}) for _ in sentences]


class Model(nn.Module):
    """An encoder and a head, of a linear layer each."""

    def __init__(self):
        super().__init__()
        self.encoder, self.head = nn.Sequential(nn.Linear(16, 16), nn.Tanh()), nn.Linear(16, 2)

    def forward(self, x):
        return self.head(self.encoder(x))


def forward(model, x):
    return model(x)


def quantize(model):
    return quantized(model, "encoder", "the encoder")


def test_differences_of_numbers_and_of_labels():
    numbers = compare_predictions(
        [Prediction(1.0, {}), Prediction(2.0, {})], [Prediction(1.5, {}), Prediction(2.0, {})]
    )
    assert numbers == "numbers differ by 0.25 on average, 0.5 at most"
    labels = compare_predictions([Prediction("a", {"a": 0.6, "b": 0.4})], [Prediction("b", {"a": 0.4, "b": 0.6})])
    assert labels == "0 of 1 labels are the same; probabilities differ by 0.2000 on average, 0.2000 at most"


def test_the_first_rows_are_compared_once(capsys):
    fast, exact = Numbers(1.5), Numbers(1.0)
    predictor = ComparedPredictor(fast, exact, "int8")
    for _ in range(2):
        assert [row.label for row in predictor.predict([("a",)] * 300, 64, 0.5)] == [1.5] * 300
    assert (fast.rows, exact.rows) == ([300, 300], [COMPARED])
    assert capsys.readouterr().err == "int8 against float32: numbers differ by 0.5 on average, 0.5 at most\n"


def test_int8_leaves_the_head_and_the_model_alone():
    model = Model()
    copied = quantize(model)
    assert not isinstance(copied.encoder[0], nn.Linear)
    assert type(copied.head) is type(model.encoder[0]) is nn.Linear


@torch.no_grad()
@pytest.mark.parametrize("precision", ["bfloat16", "int8"])
def test_values_are_near(precision):
    torch.manual_seed(0)
    model, x = Model(), torch.randn(8, 16)
    exact = forward_in("float32", model, forward, quantize)(x)
    found = forward_in(precision, model, forward, quantize)(x)
    assert torch.equal(exact, model(x))
    assert 0 < (found - exact).abs().max() < 0.1


def test_what_cannot_run_is_refused():
    with pytest.raises(UsageError, match="no such precision: 'fp16'; give one of float32, bfloat16, int8"):
        forward_in("fp16", Model(), forward, quantize)
    with pytest.raises(UsageError, match="int8 runs on a CPU, the model is on meta: --precision int8; give --device"):
        quantize(Model().to("meta"))
    with pytest.raises(UsageError, match="a gpt2 has no linear layers to quantize: --precision int8; give bfloat16"):
        quantized(nn.Sequential(nn.Tanh(), nn.Linear(2, 2)), "0", "a gpt2")
