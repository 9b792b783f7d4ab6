"""What the stand-in for a GPU calls a wait of the host, and what not."""

import pytest
import torch
from torch import nn

from tests.fake_gpu import GPU, HostWait, NoWaits, to_gpu

WAITING = {
    "tolist": lambda x: x.tolist(),
    "float": lambda x: float(x.sum()),
    "bool": lambda x: bool(x.any()),
    "branch": lambda x: 1 if x.isfinite().all() else 0,
    "cpu": lambda x: x.cpu(),
    "to": lambda x: x.to("cpu"),
    "from the host": lambda x: torch.zeros(3).to(x.device),
    "made of a list": lambda x: torch.tensor([1.0, 2.0], device=x.device),
    "copy_": lambda x: x.copy_(torch.zeros(2, 3)),
    "mask": lambda x: x[x > 1],
    "indices of the host": lambda x: x[torch.tensor([1, 0])],
    "list": lambda x: x[[1, 0]],
    "bincount": lambda x: torch.bincount(x[0].long(), minlength=4),
    "nonzero": lambda x: x.nonzero(),
    "unique": lambda x: x.unique(),
    "equal": lambda x: torch.equal(x, x + 1),
}


@pytest.mark.parametrize("name", WAITING)
def test_waiting_is_an_error(name):
    with pytest.raises(HostWait), NoWaits():
        WAITING[name](to_gpu(torch.ones(2, 3)))


@pytest.mark.parametrize("optimizer", [torch.optim.AdamW, torch.optim.SGD])
def test_a_plain_step_does_not_wait(optimizer):
    layer = to_gpu(nn.Linear(3, 4))
    with NoWaits():
        inputs = torch.ones(2, 3, device=GPU)
        loss = layer(inputs).relu().log_softmax(1).gather(1, torch.zeros(2, 1, dtype=torch.int64, device=GPU)).sum()
        loss.backward()
        nn.utils.clip_grad_norm_(layer.parameters(), 1.0)
        optimizer(layer.parameters(), lr=0.1).step()
        torch.zeros(3).to(GPU, non_blocking=True)
