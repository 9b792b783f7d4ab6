"""fairseq's part of a probe: the encoder that makes token states, and the heads that read them."""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from fairseq import options, tasks
from fairseq.data import FairseqDataset
from fairseq.dataclass.utils import convert_namespace_to_omegaconf
from fairseq.models import FairseqEncoder
from torch import Tensor, nn
from tqdm import tqdm

from sot_base.download.file import sha256_of
from sot_fairseq.data.header import DataHeader
from sot_fairseq.data.targets import target_array
from sot_fairseq.encoders import Encoder
from sot_fairseq.fairseq_patches.safe_loading import read_checked_checkpoint
from sot_fairseq.models.sot_roberta import HEADS, POOLER, SoTRobertaModel
from sot_fairseq.probing.token_cache import Encoded, EncodedSplit

__all__ = ["ProbeTask", "SplitRows"]

ENCODING = 1  # goes up when the same encoder gives other states, so that old ones are not found again
SCRATCH_SEED = 1  # draws the weights of a scratch encoder
HEAD = "head"


@dataclass(frozen=True)
class SplitRows:
    """A split of the data.

    Args:
        tokens: Token numbers of each row, as the training task makes them.
        targets: Class numbers, sets of classes (rows, K), or numbers in regression.
    """

    tokens: FairseqDataset
    targets: np.ndarray


class HeadsOnly(SoTRobertaModel):
    """The model that trains in fairseq, without its encoder: it makes heads exactly as the whole model does."""

    def __init__(self, args: Any, dictionary: Any) -> None:
        super().__init__(args, FairseqEncoder(dictionary))

    def create(self, num_classes: int, settings: Mapping[str, Any], start: Mapping[str, Tensor]) -> nn.Module:
        """Make a head.

        Args:
            num_classes: Classes, or 1 for regression.
            settings: Fields of `HeadConfig`.
            start: BERT's pretrained pooler, or nothing.

        Raises:
            UsageError: for a setting out of range.
        """
        self.classification_heads.clear()
        self.register_classification_head(HEAD, num_classes, head_settings=settings)
        state: dict[str, Tensor] = {}
        self._restore_heads(state, "", {}, start)
        head = self.get_head(HEAD)
        head.load_state_dict({key.removeprefix(f"{HEADS}{HEAD}."): value for key, value in state.items()})
        return head


class ProbeTask:
    """Preprocessed data with the encoder they are for.

    Args:
        encoder: The encoder; its weights are not read before :meth:`encode`.
        data: A folder of ``python -m sot_fairseq.preprocess``.

    Attributes:
        header: What the data say of themselves.
        splits: The splits for training and testing, by name.
    """

    def __init__(self, encoder: Encoder, data: Path) -> None:
        self.encoder, self.data = encoder, data
        self.header = DataHeader.load(data)
        self.cfg = _fairseq_config(encoder, data, self.header)
        self.task = tasks.setup_task(self.cfg.task, from_checkpoint=True)
        self.splits = {
            name: self._rows(name)
            for name, counts in self.header.splits.items()
            if name.startswith(("train", "valid")) and counts.labelled
        }
        self._heads = HeadsOnly(self.cfg.model, self.task.source_dictionary)

    def describe(self) -> dict[str, Any]:
        """Everything the token states depend on."""
        checkpoint = self.encoder.restore_file
        inputs = [path for path in sorted(self.data.glob("input*/*")) if path.name.split(".")[0] in self.splits]
        return {
            "encoding": ENCODING,
            "checkpoint": f"scratch, seed {SCRATCH_SEED}" if checkpoint is None else sha256_of(checkpoint),
            "architecture": self.encoder.arch_args,
            "token_numbers": {f"{path.parent.name}/{path.name}": sha256_of(path) for path in inputs},
            "special_tokens": [self.cfg.task.init_token, self.cfg.task.separator_token],
        }

    def create_head(self, settings: Mapping[str, Any], start: Mapping[str, Tensor] | None = None) -> nn.Module:
        """Make a head from fields of `HeadConfig` and the weights it starts from."""
        return self._heads.create(self.header.num_classes, settings, start or {})

    def encode(self, max_tokens: int = 4096) -> Encoded:
        """Load the encoder and run it over all rows, in evaluation mode.

        Args:
            max_tokens: Tokens computed at once, padding included.
        """
        model, pooler = self.load_model()
        splits = {
            name: EncodedSplit(np.asarray(split.tokens.sizes), self._batches(model, name, split.tokens, max_tokens))
            for name, split in self.splits.items()
        }
        return Encoded(self.cfg.model.encoder_embed_dim, splits, pooler)

    def load_model(self) -> tuple[SoTRobertaModel, dict[str, Tensor]]:
        """The model with its encoder's weights, in evaluation mode; and BERT's pretrained pooler, if it has one."""
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(SCRATCH_SEED)
            model = self.task.build_model(self.cfg.model)
        pooler: dict[str, Tensor] = {}
        if self.encoder.restore_file is not None:
            state = read_checked_checkpoint(self.encoder.restore_file)["model"]
            pooler = {key.removeprefix(POOLER): value.float() for key, value in state.items() if key.startswith(POOLER)}
            model.load_state_dict(state, strict=True, model_cfg=self.cfg.model)
        return model.float().eval(), pooler

    def _rows(self, split: str) -> SplitRows:
        rows = self.task.load_dataset(split).dataset
        return SplitRows(rows.defn["net_input.src_tokens"].dataset, target_array(rows.defn["target"]))

    @torch.no_grad()
    def _batches(
        self, model: SoTRobertaModel, name: str, tokens: FairseqDataset, max_tokens: int
    ) -> Iterator[tuple[np.ndarray, Tensor]]:
        """Rows of similar length, the longest first, and their states as the heads get them in training."""
        lengths = np.asarray(tokens.sizes)
        order = np.argsort(-lengths, kind="stable")
        pad = self.task.source_dictionary.pad()
        with tqdm(total=len(order), desc=f"encoding {name}", unit=" rows", disable=None) as progress:
            while len(order):
                rows, order = np.split(order, [max(1, max_tokens // lengths[order[0]])])
                batch = nn.utils.rnn.pad_sequence([tokens[row] for row in rows], batch_first=True, padding_value=pad)
                features, _ = model.encoder(batch, features_only=True)
                yield rows, features
                progress.update(len(rows))


def _fairseq_config(encoder: Encoder, data: Path, header: DataHeader) -> Any:
    """The configuration of ``fairseq-train`` with a frozen encoder."""
    words = [str(data), "--task", "sentence_prediction_mgcrp", "--criterion", "sentence_prediction_mgcrp"]
    words += [*encoder.arch_args, "--num-classes", str(header.num_classes), "--freeze-backbone", "--cpu"]
    words += ["--regression-target"] if header.regression else []
    words += ["--multi-label"] if header.multi_label else []
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", category=UserWarning)  # hydra's, of fairseq's old calls
        return convert_namespace_to_omegaconf(options.parse_args_and_arch(options.get_training_parser(), words))
