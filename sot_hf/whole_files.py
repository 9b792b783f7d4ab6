"""transformers' Trainer with atomic files: whatever ends a run, the last checkpoint is intact."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from safetensors import SafetensorError

from sot_base.atomic import atomic_file
from sot_base.errors import NO_ROOM, UsageError
from sot_hf.checkpoints import STATE, publish, remove_folder, rotate, unfinished_folder
from sot_hf.safe_resume import SafeResumeTrainer

__all__ = ["WholeFilesTrainer"]

TORCH_WRITER = ("PytorchStreamWriter", "inline_container")  # in torch's errors when a file cannot be written on
RESUME = "free some space, and resume with --resume_from_checkpoint last"


class WholeFilesTrainer(SafeResumeTrainer):
    """`Trainer` that writes under temporary names, renames complete files, and reports a full disk in one line.

    Args:
        *args: As `Trainer`.
        **kwargs: As `Trainer`.
    """

    _staging: Path | None = None  # where a checkpoint is being written

    @property
    def output(self) -> Path:
        """The output folder."""
        return Path(self.args.output_dir)

    def check_finite(self) -> None:
        """Called before a model is saved; raises to prevent it."""

    def save_model(self, output_dir: str | None = None, _internal_call: bool = False) -> None:
        """As `Trainer.save_model`; the files are moved into place once all of them are written."""
        self.check_finite()
        if output_dir is not None:
            super().save_model(output_dir, _internal_call)
            return
        with _full_disk_is_named(self.output, self.model), self._unfinished(self.output / "model") as folder:
            super().save_model(str(folder), _internal_call=True)
            if self.args.should_save:
                publish(folder, self.output)
        if self.args.push_to_hub and not _internal_call:
            self.push_to_hub(commit_message="Model save", revision=self.args.hub_revision)

    def save_metrics(self, split: str, metrics: dict[str, float], combined: bool = True) -> None:
        """As `Trainer.save_metrics`: ``<split>_results.json``, and all of them together in ``all_results.json``."""
        if not self.is_world_process_zero():
            return
        self.write_json(f"{split}_results.json", metrics)
        if combined:
            together = self.output / "all_results.json"
            with contextlib.suppress(
                OSError, ValueError, TypeError
            ):  # absent, or not as written here: it is written anew
                metrics = {**json.loads(together.read_text(encoding="utf-8")), **metrics}
            self.write_json(together.name, metrics)

    def save_state(self) -> None:
        """As `Trainer.save_state`: ``trainer_state.json``."""
        if self.is_world_process_zero():
            with atomic_file(self.output / STATE) as temporary:
                self.state.save_to_json(os.fspath(temporary))

    def write_json(self, name: str, content: Any) -> None:
        """Write a file of the output folder."""
        with atomic_file(self.output / name) as temporary:
            temporary.write_text(json.dumps(content, indent=4, sort_keys=True) + "\n", encoding="utf-8")

    def rotate_checkpoints(self) -> None:
        """Keep as many checkpoints as ``save_total_limit`` says."""
        if self.args.should_save:
            rotate(self.output, self.args.save_total_limit, self.state.best_model_checkpoint)

    def _save_checkpoint(self, model: Any, trial: Any) -> None:
        checkpoint = self.output / f"checkpoint-{self.state.global_step}"
        with _full_disk_is_named(checkpoint, self.model), self._unfinished(checkpoint) as folder:
            self._staging = folder
            try:
                super()._save_checkpoint(model, trial)
            finally:
                self._staging = None
            self.accelerator.wait_for_everyone()
            if Path(self.state.best_model_checkpoint or "").parent == folder:
                self.state.best_model_checkpoint = os.fspath(checkpoint)
            if self.args.should_save:
                written = folder / checkpoint.name
                self.state.save_to_json(os.fspath(written / STATE))
                if checkpoint.exists():
                    remove_folder(checkpoint)
                written.rename(checkpoint)
        self.rotate_checkpoints()

    def _get_output_dir(self, trial: Any) -> str:
        return os.fspath(self._staging) if self._staging else super()._get_output_dir(trial)

    @contextlib.contextmanager
    def _unfinished(self, path: Path) -> Iterator[Path]:
        with unfinished_folder(path, owner=self.args.should_save) as folder:
            self.accelerator.wait_for_everyone()
            yield folder
            self.accelerator.wait_for_everyone()


@contextlib.contextmanager
def _full_disk_is_named(path: Path, model: Any) -> Iterator[None]:
    """Report a full disk, a quota or a limit on the size of files, which torch and safetensors do not name."""
    try:
        yield
    except (OSError, RuntimeError, SafetensorError) as error:
        if isinstance(error, OSError):
            full = error.errno in NO_ROOM
        else:
            size = sum(parameter.nbytes for parameter in model.parameters())
            few = shutil.disk_usage(path if path.is_dir() else path.parent).free < 3 * size  # with Adam's two averages
            full = few or "I/O error" in str(error) or any(name in str(error) for name in TORCH_WRITER)
        if not full:
            raise
        reason = "too large for the disk, a quota or ulimit -f" if not isinstance(error, OSError) else error.strerror
        raise UsageError(
            f"the disk is full, no checkpoint was written: {os.path.abspath(path)}; {RESUME} ({reason})"
        ) from error
