"""A small transformer with the second-order head, on real-valued inputs or on word embeddings."""

import torch
from torch import nn

from sot_core import ClassificationHead, HeadConfig
from sot_visual.model_view import ModelView

WIDTH, WORDS = 8, 20


class TinyEncoder(nn.Module):
    """Embedding, two blocks of self-attention, head; a token of number 0 is padding, the first one the class token."""

    def __init__(self, **head):
        super().__init__()
        torch.manual_seed(0)
        self.embed = nn.Embedding(WORDS, WIDTH)
        self.blocks = nn.ModuleList(Block() for _ in range(2))
        self.head = ClassificationHead(HeadConfig(**{"embed_dim": WIDTH, "num_classes": 3, "q_dim": 3, **head}))

    def tokens(self, ids):
        mask = ids == 0
        x = self.embed(ids)
        for block in self.blocks:
            x = block(x, mask)
        return x, mask

    def view(self):
        return ModelView(
            tokens=self.tokens,
            classify=self.head,
            head=self.head,
            embedding=self.embed,
            baseline=torch.zeros_like,
            last_block=self.blocks[-1],
        )


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm, self.qkv, self.out = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)

    def forward(self, x, mask):
        q, k, v = self.qkv(self.norm(x)).unflatten(-1, (3, 2, -1)).permute(2, 0, 3, 1, 4)
        attended = nn.functional.scaled_dot_product_attention(q, k, v, attn_mask=~mask[:, None, None])
        return x + self.out(attended.transpose(1, 2).flatten(2))


def ids(*lengths):
    rows = torch.randint(1, WORDS, (len(lengths), max(lengths)), generator=torch.Generator().manual_seed(1))
    return rows * (torch.arange(max(lengths)) < torch.tensor(lengths).unsqueeze(1))
