"""The fairseq part of a probe: the encoder and the heads."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
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

from sot_base.download.file import sha256_of
from sot_fairseq.data.header import DataHeader
from sot_fairseq.data.targets import target_array
from sot_fairseq.encoders import Encoder
from sot_fairseq.fairseq_patches.safe_loading import read_checked_checkpoint
from sot_fairseq.models.sot_roberta import HEADS, POOLER, SoTRobertaModel
from sot_fairseq.probing.top_layers import TopLayers
from sot_probe.options import resolve_layers
from sot_probe.store_writer import SplitPlan, plan_batches

__all__ = ["ProbeTask", "SplitRows"]

ENCODING = 2  # increased when the states of an encoder change, so that old ones are not reused
SCRATCH_SEED = 1  # draws the weights of a scratch encoder
HEAD = "head"
MAX_TOKENS = 4096  # in a batch, padding included


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
        encoder: The encoder; its weights are not read before :meth:`create_encoder`.
        data: A folder of ``python -m sot_fairseq.preprocess``.
        layers: Layers whose states are kept: 0 the embeddings, -1 the last one.
        device: Where the encoder runs.
        train_layers: Number of layers from the top that are trained with heads; the layer below them is kept.

    Attributes:
        header: What the data say of themselves.
        layers: Numbers of the layers.
        splits: The splits for training and testing, by the names of their files.
    """

    def __init__(
        self,
        encoder: Encoder,
        data: Path,
        layers: Sequence[int] = (-1,),
        device: torch.device | str = "cpu",
        train_layers: int = 0,
    ) -> None:
        self.encoder, self.data, self.device = encoder, data, device
        self.header = DataHeader.load(data)
        self.cfg = _fairseq_config(encoder, data, self.header)
        self.task = tasks.setup_task(self.cfg.task, from_checkpoint=True)
        self._files = {
            name: Path(counts.source).stem
            for name, counts in self.header.splits.items()
            if name.startswith(("train", "valid")) and counts.labelled
        }
        self.splits = {file: self._rows(name) for name, file in self._files.items()}
        self.layers = resolve_layers(layers, self.cfg.model.encoder_layers, train_layers)
        self._heads = HeadsOnly(self.cfg.model, self.task.source_dictionary)

    @property
    def embed_dim(self) -> int:
        """Width D of the states."""
        return int(self.cfg.model.encoder_embed_dim)

    def describe(self) -> dict[str, Any]:
        """Everything the token states depend on."""
        checkpoint = self.encoder.restore_file
        inputs = [path for path in sorted(self.data.glob("input*/*")) if path.name.split(".")[0] in self._files]
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

    def create_top_layers(self, count: int) -> TopLayers:
        """Copy the encoder's top layers, to be trained on the states of the layer below them."""
        return TopLayers(self.load_model()[0].encoder.sentence_encoder, count)

    def create_encoder(self) -> _Encoding:
        """Load the encoder, in evaluation mode."""
        return _Encoding(self)

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


class _Encoding:
    """The encoder over the rows of all splits, see `sot_probe.store_writer.StateEncoder`.

    Args:
        task: Data and encoder.
    """

    def __init__(self, task: ProbeTask) -> None:
        self.task = task
        self.model, self.start = task.load_model()
        self.model.to(task.device)
        self.layers = [f"layer-{layer}" for layer in task.layers]
        self.embed_dim = task.embed_dim
        sizes = {name: np.asarray(split.tokens.sizes) for name, split in task.splits.items()}
        self.plans = {name: SplitPlan(lengths, plan_batches(lengths, MAX_TOKENS)) for name, lengths in sizes.items()}

    @torch.no_grad()
    def encode(self, split: str, rows: np.ndarray) -> list[Tensor]:
        """Encode rows, as in training."""
        tokens, pad = self.task.splits[split].tokens, self.task.task.source_dictionary.pad()
        batch = nn.utils.rnn.pad_sequence([tokens[row] for row in rows], batch_first=True, padding_value=pad)
        features, extra = self.model.encoder(batch.to(self.task.device), features_only=True, return_all_hiddens=True)
        inner = extra["inner_states"]  # (T, B, D) of the embeddings and each layer
        last = len(inner) - 1
        states = [features if layer == last else inner[layer].transpose(0, 1) for layer in self.task.layers]
        return [layer.cpu() for layer in states]


def _fairseq_config(encoder: Encoder, data: Path, header: DataHeader) -> Any:
    """The configuration of ``fairseq-train`` with a frozen encoder."""
    words = [str(data), "--task", "sentence_prediction_mgcrp", "--criterion", "sentence_prediction_mgcrp"]
    words += [*encoder.arch_args, "--num-classes", str(header.num_classes), "--freeze-backbone", "--cpu"]
    words += ["--regression-target"] if header.regression else []
    words += ["--multi-label"] if header.multi_label else []
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", category=UserWarning)  # hydra's, of fairseq's old calls
        return convert_namespace_to_omegaconf(options.parse_args_and_arch(options.get_training_parser(), words))
