r"""Search the options of a training: every setting is trained with several seeds, and the best one is reported.

    python -m sot_fairseq.sweep SWEEP_DIR --command out/cola/mgcrp/seed-1/command.txt --seeds 1 2 3 --trials 20 \
        --param lr=1e-5..1e-3:log --param head-lr-scale=1,5,10 --param mgcrp-q=8..48:int

The training is a ``fairseq-train`` command: that of the ``command.txt`` that a script of ``glue_scripts`` writes next
to its checkpoints, or the arguments after ``--``. Each trial draws a value for every ``--param``, which overrides the
command's, trains once with each seed, and is scored by the mean over seeds of the best ``--best-checkpoint-metric`` of
a run. optuna draws the values: ``tpe`` learns from earlier trials, ``random`` does not, ``grid`` tries all
combinations of the listed values.

``true`` and ``false`` set a flag. Do not search an option on which others depend, such as the batch size, which decides
how many updates a schedule has.

SWEEP_DIR gets ``runs.csv`` with a row for each training, ``study.log``, optuna's journal, and the logs in ``runs/``;
checkpoints are removed once a run is done, unless ``--keep-checkpoints`` is given. A killed sweep resumes when it is
started again with the same arguments, and continues with more ``--trials``. A setting whose training fails is left out;
only if the first one does not even start, as after a mistake in the command, the sweep ends. Signals are passed on to
the training. The best of many settings on the dev set looks better than it is: train it again with new seeds before you
report it.
"""

from __future__ import annotations

import csv
import hashlib
import json
import shlex
import statistics
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import IO, Any

from sot_base.command_help import show_help
from sot_fairseq.command_options import sweep_parser

if __name__ == "__main__":  # before the imports that take seconds
    show_help(lambda: sweep_parser(__doc__))

import msgspec
import optuna
from filelock import FileLock, Timeout
from optuna.storages import JournalStorage
from optuna.storages.journal import JournalFileBackend
from optuna.trial import TrialState

from sot_base.atomic import atomic_file
from sot_base.children import Children
from sot_base.errors import UsageError, run_main
from sot_base.markdown import markdown_table
from sot_base.small_files import read_json
from sot_fairseq.fairseq_patches.safe_loading import read_checked_checkpoint
from sot_fairseq.runs.search_space import Parameter, command_words, grid, parse_parameter, setting_of

__all__ = ["Sweep", "main"]

OWN_OPTIONS = ("--seed", "--save-dir")
SHOWN = 5  # settings in the table
DONE = (TrialState.COMPLETE, TrialState.PRUNED)
BEGIN = "begin training epoch"  # in the log of a training that has started


class _RunResult(msgspec.Struct):
    """The record of a finished training."""

    value: float


class Sweep:
    """A search in a folder.

    Args:
        folder: Where everything goes.
        words: The arguments of ``fairseq-train``.
        parameters: What is searched.
        seeds: One training each, for every setting.
        keep_checkpoints: Leave the checkpoints of finished runs.

    Raises:
        UsageError: If the folder holds another sweep, or the command cannot be searched.
    """

    def __init__(
        self,
        folder: Path,
        words: Sequence[str],
        parameters: Sequence[Parameter],
        seeds: Sequence[int],
        keep_checkpoints: bool = False,
    ) -> None:
        self.folder, self.words, self.parameters, self.seeds = folder, list(words), list(parameters), list(seeds)
        self.keep_checkpoints = keep_checkpoints
        if "--no-save" in words:
            raise UsageError("--no-save: the command; leave it out, results are read from checkpoints")
        metric = _value_of("--best-checkpoint-metric", words)
        if metric is None:
            raise UsageError("no --best-checkpoint-metric: the command; name the metric that the sweep optimises")
        self.metric = metric
        self.maximize = "--maximize-best-checkpoint-metric" in words
        settings = {"words": self.words, "parameters": [repr(p) for p in parameters], "seeds": self.seeds}
        file = folder / "sweep.json"
        if file.is_file() and read_json(file, dict[str, Any], "give another folder") != settings:
            raise UsageError(f"the folder holds another sweep: {folder.absolute()}; give another one")
        folder.mkdir(parents=True, exist_ok=True)
        with atomic_file(file) as temporary:
            temporary.write_text(json.dumps(settings, indent=2) + "\n", encoding="utf-8")

    def run(self, trials: int, sampler: str = "tpe", sampler_seed: int = 0) -> None:
        """Train until this many trials have finished.

        Args:
            trials: How many, with those of earlier calls.
            sampler: ``tpe``, ``random`` or ``grid``.
            sampler_seed: Its random seed.

        Raises:
            UsageError: If the first trial does not start or all fail, the sampler cannot do with the parameters, or
                another process is at work in the folder.
        """
        try:
            with FileLock(self.folder / ".lock", timeout=0):
                self._run(trials, sampler, sampler_seed)
        except Timeout:
            raise UsageError(f"another process runs this sweep: {self.folder.absolute()}; wait for it") from None

    def _run(self, trials: int, sampler: str, sampler_seed: int) -> None:
        study = optuna.create_study(
            storage=JournalStorage(JournalFileBackend(str(self.folder / "study.log"))),
            study_name="sweep",
            direction="maximize" if self.maximize else "minimize",
            load_if_exists=True,
        )
        # begins elsewhere after each restart, or the first draws would be those of the start
        study.sampler = self._sampler(sampler, sampler_seed + len(study.get_trials(deepcopy=False)))
        self._enqueue(study, grid(self.parameters, sampler_seed) if sampler == "grid" else [])
        error = ""
        with Children() as children:
            while len(study.get_trials(deepcopy=False, states=DONE)) < trials:
                if sampler == "grid" and not study.get_trials(deepcopy=False, states=(TrialState.WAITING,)):
                    break
                error = self._try(study, children) or error
        if error and not study.get_trials(deepcopy=False, states=(TrialState.COMPLETE,)):
            raise UsageError(f"all trials failed, the last one: {error}")

    def _enqueue(self, study: optuna.Study, settings: Sequence[Mapping[str, Any]]) -> None:
        """Put into the queue what a stopped sweep had begun, and settings that are neither done nor waiting."""
        settled = [setting_of(trial) for trial in study.get_trials(states=(*DONE, TrialState.WAITING))]
        begun = study.get_trials(states=(TrialState.RUNNING, TrialState.FAIL))
        for trial in begun:
            if trial.state == TrialState.RUNNING:
                study.tell(trial.number, state=TrialState.FAIL)
        for setting in (*map(setting_of, begun), *settings):
            if setting not in settled:
                study.enqueue_trial(dict(setting))
                settled.append(setting)

    def _sampler(self, name: str, seed: int) -> optuna.samplers.BaseSampler:
        if name == "grid":
            ranges = [parameter.name for parameter in self.parameters if not parameter.choices]
            if ranges:
                raise UsageError(f"a range has no grid: --param {ranges[0]}; list its values, or use tpe or random")
        return optuna.samplers.TPESampler(seed=seed) if name == "tpe" else optuna.samplers.RandomSampler(seed=seed)

    def _try(self, study: optuna.Study, children: Children) -> str:
        """Train one setting with every seed; returns why it was discarded, or ""."""
        trial = study.ask()
        words = command_words({parameter.name: parameter.suggest(trial) for parameter in self.parameters})
        trial.set_user_attr("words", words)
        values: list[float] = []
        for seed in self.seeds:
            value, error, started = self._train(words, seed, children)
            if value is None:
                mistake = not started and not study.get_trials(deepcopy=False, states=DONE)
                study.tell(trial, state=TrialState.FAIL if mistake else TrialState.PRUNED)
                if mistake:
                    raise UsageError(error)
                sys.stderr.write(f"trial {trial.number} is left out: {error}\n")
                return error
            values.append(value)
            trial.set_user_attr("values", values)
            self.write_csv(study)
        study.tell(trial, statistics.fmean(values))
        return ""

    def _train(self, words: Sequence[str], seed: int, children: Children) -> tuple[float | None, str, bool]:
        """Train once, unless already done; returns the best value or None, the failure, and whether it trained."""
        key = hashlib.sha256(shlex.join(words).encode()).hexdigest()[:12]
        save_dir = self.folder / "runs" / key / f"seed-{seed}"
        result = save_dir / "result.json"
        if not result.is_file():
            save_dir.mkdir(parents=True, exist_ok=True)
            command = [*self.words, *words, "--seed", str(seed), "--save-dir", str(save_dir)]
            sys.stdout.write(f"{shlex.join(words)} --seed {seed}\n")
            sys.stdout.flush()
            log = save_dir / "train.log"
            with log.open("a", encoding="utf-8") as stream:
                begin = stream.tell()
                status = run_training(children, command, stream)
            if status:
                text = log.read_bytes()[begin:].decode("utf-8", "replace")
                last = " ".join(text.splitlines()[-1:]).removeprefix("error: ")
                return None, f"fairseq-train failed ({last}): {log.absolute()}; see it", BEGIN in text
            state = read_checked_checkpoint(save_dir / "checkpoint_last.pt")
            with atomic_file(result) as temporary:
                temporary.write_text(json.dumps({"value": float(state["extra_state"]["best"])}) + "\n")
        if not self.keep_checkpoints:
            for checkpoint in save_dir.glob("checkpoint*.pt"):
                checkpoint.unlink()
        return read_json(result, _RunResult, "remove it to train this run again").value, "", True

    def write_csv(self, study: optuna.Study) -> None:
        """Write ``runs.csv``: trial, seed, the parameters and the metric, one row per finished training."""
        with atomic_file(self.folder / "runs.csv") as file, file.open("w", encoding="utf-8", newline="") as stream:
            writer = csv.writer(stream)
            writer.writerow(["trial", "seed", *(parameter.name for parameter in self.parameters), self.metric])
            for trial in study.get_trials(deepcopy=False):
                for seed, value in zip(self.seeds, trial.user_attrs.get("values", []), strict=False):
                    chosen = [trial.params[parameter.name] for parameter in self.parameters]
                    writer.writerow([trial.number, seed, *chosen, value])

    def report(self) -> str:
        """Return the best settings as a table, with mean, standard deviation and extremes over the seeds."""
        study = optuna.load_study(
            study_name="sweep", storage=JournalStorage(JournalFileBackend(str(self.folder / "study.log")))
        )
        trials = study.get_trials(deepcopy=False, states=(TrialState.COMPLETE,))
        best = {shlex.join(trial.user_attrs["words"]): trial for trial in trials}  # each setting once
        ranked = sorted(best.items(), key=lambda item: item[1].value or 0.0, reverse=self.maximize)
        rows = [("rank", "setting", self.metric, "std", "n", "lowest", "highest")]
        for rank, (setting, trial) in enumerate(ranked[:SHOWN], start=1):
            values: list[float] = trial.user_attrs["values"]
            spread = f"{statistics.stdev(values):.2f}" if len(values) > 1 else "-"
            numbers = (f"{statistics.fmean(values):.2f}", spread, str(len(values)))
            rows.append((str(rank), setting, *numbers, f"{min(values):.2f}", f"{max(values):.2f}"))
        return f"{len(best)} settings tried\n{markdown_table(rows)}"


def run_training(children: Children, words: Sequence[str], log: IO[str]) -> int:
    """Run ``fairseq-train``; returns its status."""
    training = children.start([sys.executable, "-m", "sot_fairseq.train", *words], stdout=log, stderr=log)
    return children.wait(training)[0]


def _value_of(option: str, words: Sequence[str]) -> str | None:
    for number in reversed(range(len(words))):
        word, equals, value = words[number].partition("=")
        if word == option:
            return value if equals else next(iter(words[number + 1 :]), None)
    return None


def _command(file: str | None, words: Sequence[str]) -> list[str]:
    """Read the training command, without what the sweep sets itself."""
    if (file is None) == (not words):
        raise UsageError(
            "expected one training command: the command line; give --command FILE, or -- and its arguments"
        )
    text = shlex.split(Path(file).read_text(encoding="utf-8")) if file else list(words)
    if text and Path(text[0]).name == "fairseq-train":
        text = text[1:]
    kept: list[str] = []
    skip = False
    for word in text:
        if not (skip or word in OWN_OPTIONS):
            kept.append(word)
        skip = word in OWN_OPTIONS
    return kept


def main(arguments: Sequence[str] | None = None) -> None:
    """Search from the command line and print the best settings."""
    words = list(sys.argv[1:] if arguments is None else arguments)
    own, training = (words[: words.index("--")], words[words.index("--") + 1 :]) if "--" in words else (words, [])
    args = sweep_parser(__doc__).parse_args(own)
    if args.trials < 1:
        raise UsageError(f"--trials {args.trials}: the command line; give 1 or more")
    parameters = [parse_parameter(text) for text in args.param]
    names = [parameter.name for parameter in parameters]
    for name in names:
        if names.count(name) > 1 or f"--{name}" in OWN_OPTIONS:
            raise UsageError(f"--param {name}: the command line; name each option once, and neither seed nor save-dir")
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    sweep = Sweep(args.sweep_dir, _command(args.command, training), parameters, args.seeds, args.keep_checkpoints)
    sweep.run(args.trials, args.sampler, args.sampler_seed)
    sys.stdout.write(f"\n{sweep.report()}\n\nwrote {args.sweep_dir / 'runs.csv'}\n")


if __name__ == "__main__":
    run_main(main)
