import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from fairseq import checkpoint_utils, options
from fairseq.dataclass.utils import convert_namespace_to_omegaconf
from fairseq_cli import validate as fairseq_validate

import sot_fairseq
from sot_base.errors import UsageError
from sot_base.safe_checkpoint import read_checkpoint
from sot_fairseq import convert, encoders, evaluate, predict, results
from sot_fairseq.fairseq_patches.checkpoint_config import check_configuration
from sot_fairseq.fairseq_patches.option_types import LITERALS, option_types
from sot_fairseq.fairseq_patches.plain_values import plain_value
from sot_fairseq.fairseq_patches.safe_loading import read_checked_checkpoint
from sot_fairseq.models.sot_roberta import SoTRobertaModel
from sot_fairseq.pretrained.arch_args import fairseq_arch_args
from sot_hf import convert as hf_convert
from sot_text.formats import checkpoint_file
from sot_text.formats.fairseq_classifier import read_classifier
from tests.sot_fairseq.conftest import command, run_train
from tests.sot_fairseq.hostile_options import added_fields, as_args, expression, fields, with_value, without
from tests.support import REPOSITORY

FAIRSEQ = Path(checkpoint_utils.__file__).parent


@pytest.fixture(scope="module")
def trained(data, tmp_path_factory):
    folder = tmp_path_factory.mktemp("run")
    run_train(data, folder)
    return folder


@pytest.fixture(scope="module")
def state(trained):
    return read_checkpoint(trained / "checkpoint_best.pt", lazy=False)


@pytest.fixture
def canary(tmp_path):
    return tmp_path / "canary"


@pytest.fixture(params=["cfg", "args"])
def form(request):
    """Where a checkpoint has its configuration."""
    return request.param


def with_configuration(state, form, config):
    return {**state, "cfg": None, "args": None, form: config}


def configuration(state, form):
    return state["cfg"] if form == "cfg" else as_args(state["cfg"])


def mutants(config, value):
    """The configuration with a value in each of its fields, one after the other, and in fields that it may have."""
    for path in dict.fromkeys((*fields(config), *added_fields(config))):
        yield ".".join(map(str, path)), with_value(config, path, value)


def build_all(path):
    """What fairseq-validate and its siblings do with a checkpoint."""
    models, config, task = checkpoint_utils.load_model_ensemble_and_task([str(path)], arg_overrides={})
    task.build_criterion(config.criterion)
    return models


def load_from_hub(path):
    return SoTRobertaModel.from_pretrained(str(path.parent), path.name, str(path.parent), bpe=None)


READERS = {  # ways that take options from the file as it is
    "sweep, probe": read_checked_checkpoint,
    "encoders, prepare": fairseq_arch_args,
    "sot_hf.convert": read_classifier,
}
TRAINING = {"training": lambda path: checkpoint_utils.load_checkpoint_to_cpu(str(path))}  # as fairseq-validate does
BUILDERS = {  # ways that build a model from them
    "from_pretrained": sot_fairseq.from_pretrained,
    "fairseq-validate": build_all,
    "hub": load_from_hub,
}


def refusal(function, *arguments):
    """The error that a function ends with, None if it does not."""
    try:
        function(*arguments)
    except UsageError as error:
        return str(error)
    return None


def test_the_expression_would_leave_the_canary(canary):
    eval(expression(canary))
    assert canary.exists()


def test_no_field_runs_in_any_way_of_loading(state, form, canary, trained, monkeypatch, record_testsuite_property):
    path, config, text = trained / "checkpoint_best.pt", configuration(state, form), expression(canary)
    current = {}
    monkeypatch.setattr(checkpoint_file, "read_checkpoint", lambda *_, **__: dict(current))
    counts = dict.fromkeys(("refused", "ignored", "kept"), 0)
    for field, mutant in mutants(config, text):
        current.update(with_configuration(state, form, mutant))
        checked = dict(current)
        error = refusal(check_configuration, checked, "the file")
        outcome = "refused" if error else "kept" if text in str(checked[form]) else "ignored"
        counts[outcome] += 1
        if error:
            where = field.removesuffix("._name") if form == "cfg" else f"args.{field}".removesuffix(".cfg")
            assert re.match(rf"option {re.escape(where)}|option {re.escape(where.rpartition('.')[0])} ", error), error
        ways = {"ignored": READERS, "refused": READERS | TRAINING | BUILDERS, "kept": READERS | BUILDERS}[outcome]
        for way, load in ways.items():
            refused = refusal(load, path)
            assert refused or not error or way == "sot_hf.convert", (field, way)
            assert not canary.exists(), (field, way)
    for name, count in counts.items():
        record_testsuite_property(f"{form} {name}", count)
    assert sum(counts.values()) > (600 if form == "cfg" else 280)
    assert counts["refused"] > counts["kept"] > 5


def test_a_configuration_that_lacks_an_option_is_read_or_refused(state, trained, monkeypatch):
    path, current, outcomes = trained / "checkpoint_best.pt", {}, []
    builders = (sot_fairseq.from_pretrained, build_all)
    monkeypatch.setattr(checkpoint_file, "read_checkpoint", lambda *_, **__: dict(current))
    for number, field in enumerate(field for field in fields(state["cfg"]) if len(field) <= 2):
        built_from = field[0] in ("task", "model", "criterion")
        if len(field) > 1 and not built_from and number % 8:
            continue  # of the sections that no model is built from, some
        for load in builders if len(field) == 1 else (builders[number % 2],):
            current.update(with_configuration(state, "cfg", without(state["cfg"], field)))
            outcomes.append((field, refusal(load, path)))
    for section in ("task", "model"):
        problem = f"no options of the {section} in the checkpoint: {path}; get or save it again"
        assert outcomes.count(((section,), problem)) == 2
    assert sum(problem is None for _, problem in outcomes) > len(outcomes) / 2
    assert not any("\n" in problem for _, problem in outcomes if problem)


@pytest.mark.parametrize("name", ["a", "encoder.other", "classification_heads.x", "é", ""])
def test_a_tensor_of_no_part_of_the_model_is_named(name, state, trained, monkeypatch):
    more = {**state, "model": {**state["model"], name: torch.ones(2)}}
    monkeypatch.setattr(checkpoint_file, "read_checkpoint", lambda *_, **__: dict(more))
    problem = refusal(build_all, trained / "checkpoint_best.pt")
    if name.startswith("classification_heads"):
        assert problem is None  # left out with a warning
    else:
        assert problem == (
            f"the checkpoint is of another architecture, 1 tensors differ: {name} [2] -> absent; "
            "give --arch and the sizes of that checkpoint"
        )


# What fairseq's own command lines do with a file, tried with fields that it evaluates and some of every section.
TASK = (
    "--user-dir",
    REPOSITORY / "sot_fairseq",
    "--task",
    "sentence_prediction_mgcrp",
    "--criterion",
    "sentence_prediction_mgcrp",
)
SAMPLE = {
    "cfg": ("model.encoder_xformers_att_config", "optimizer.adam_betas", "model._name", "task.data", "common.user_dir"),
    "args": ("encoder_xformers_att_config", "adam_betas", "arch", "data"),
}


def write_mutant(state, form, field, text, folder, name="checkpoint_best.pt"):
    """The trained checkpoint with an expression in one field, as a file."""
    mutant = with_value(configuration(state, form), tuple(field.split(".")), text)
    torch.save(with_configuration(state, form, mutant), folder / name)
    return folder / name


@pytest.fixture
def folder(trained, tmp_path):
    """A copy of the run's folder."""
    shutil.copytree(trained, tmp_path / "run" / "mgcrp" / "seed-1")
    return tmp_path / "run" / "mgcrp" / "seed-1"


def validate(data, path):
    words = [str(data), "--path", str(path), "--batch-size", "8", "--cpu", *map(str, TASK)]
    args = options.parse_args_and_arch(options.get_validation_parser(), words)
    overrides = options.parse_args_and_arch(options.get_validation_parser(), words, suppress_defaults=True)
    fairseq_validate.main(convert_namespace_to_omegaconf(args), overrides)


COMMANDS = {
    "--restore-file": lambda data, file, out: run_train(
        data, out, "--restore-file", file, "--reset-optimizer", "--reset-dataloader", "--reset-meters"
    ),
    "--finetune-from-model": lambda data, file, out: run_train(data, out, "--finetune-from-model", file),
    "resume": lambda data, file, out: run_train(
        data, shutil.copy(file, file.parent / "checkpoint_last.pt").parent, "--max-epoch", "2"
    ),
    "fairseq-validate": lambda data, file, out: validate(data, file),
    "predict": lambda data, file, out: predict.main([str(file), str(REPOSITORY / "LICENSE")]),
    "evaluate": lambda data, file, out: evaluate.main([str(file), "--data", str(data)]),
    "results": lambda data, file, out: results.collect(file.parents[2]),
    "encoders": lambda data, file, out: encoders.find(str(file), out),
    "convert": lambda data, file, out: convert.convert(file, out),
    "sot_hf.convert": lambda data, file, out: hf_convert.convert(file, out),
}


@pytest.mark.parametrize("way", COMMANDS)
def test_no_field_runs_through_a_command(way, form, state, folder, data, canary, tmp_path):
    shutil.copytree(data, folder.parents[1] / "data")
    for field in SAMPLE[form]:
        file = write_mutant(state, form, field, expression(canary), folder)
        refusal(COMMANDS[way], data, file, tmp_path / "out" / field)
        assert not canary.exists(), field


@pytest.mark.e2e
@pytest.mark.slow
@pytest.mark.parametrize("program", ["fairseq_cli.train", "fairseq_cli.validate"])
def test_a_command_line_ends_with_one_line_and_status_2(program, state, folder, data, canary, tmp_path):
    file = write_mutant(state, "cfg", "model.encoder_xformers_att_config", expression(canary), folder)
    words = {
        "fairseq_cli.train": command(data, tmp_path / "out", "--finetune-from-model", file),
        "fairseq_cli.validate": [data, "--path", file, "--batch-size", "8", "--cpu", *TASK],
    }[program]
    run = subprocess.run([sys.executable, "-m", program, *map(str, words)], capture_output=True, text=True, check=False)
    assert run.returncode == 2, run.stderr
    assert re.fullmatch(
        r"error: option model\.encoder_xformers_att_config of the checkpoint is not a literal of type dict.*: "
        rf"{re.escape(str(file))}; .*\n",
        run.stderr.splitlines(keepends=True)[-1],
    )
    assert not canary.exists()


@pytest.mark.e2e
@pytest.mark.slow
@pytest.mark.parametrize("field", ["optimizer.adam_betas", "model.encoder_xformers_att_config"])
def test_a_yaml_file_for_hydra_runs_nothing(field, data, canary, tmp_path):
    config = REPOSITORY / "sot_fairseq" / "config"
    shutil.copy(config / "cola.yaml", tmp_path / "hostile.yaml")
    section, name = field.split(".")
    lines = [line for line in (config / "shared.yaml").read_text().splitlines() if not line.startswith(f"  {name}:")]
    lines.insert(lines.index(f"{section}:") + 1, f"  {name}: '{expression(canary)}'")
    (tmp_path / "shared.yaml").write_text("\n".join(lines) + "\n")
    overrides = [f"task.data={data}", "checkpoint.finetune_from_model=null", "common.cpu=true"]
    overrides += [f"common.user_dir={REPOSITORY / 'sot_fairseq'}", "hydra.run.dir=."]
    words = ["--config-dir", str(tmp_path), "--config-name", "hostile", *overrides]
    run = subprocess.run(
        [sys.executable, "-m", "fairseq_cli.hydra_train", *words],
        capture_output=True,
        text=True,
        check=False,
        cwd=tmp_path,
    )
    assert run.returncode == 2, run.stderr
    assert re.match(rf"error: {re.escape(field)} is not a literal of type .*; correct it", run.stderr.splitlines()[-1])
    assert not canary.exists()


def test_every_option_that_fairseq_evaluates_is_known_to_be():
    pattern = re.compile(r"\beval(?:_str_list|_str_dict|_bool)?\(\s*(?:self\.)?(?:cfg|args)\.(\w+)")
    evaluated = {name for file in FAIRSEQ.rglob("*.py") for name in pattern.findall(file.read_text())}
    assert {"adam_betas", "adaptive_softmax_cutoff", "pipeline_balance"} <= evaluated
    convolutions = {"encoder_layers", "decoder_layers"}  # of fconv; numbers in every other model
    assert evaluated & option_types().keys() <= LITERALS.keys() | convolutions


def test_no_module_of_fairseq_has_the_real_eval():
    found = [name for name in sys.modules if name.partition(".")[0] == "fairseq" and sys.modules[name] is not None]
    calls = [name for name in found if re.search(r"(?<![\w.])eval\(", source_of(name))]
    assert {"fairseq.utils", "fairseq.optim.adam"} <= set(calls)
    assert all(vars(sys.modules[name])["eval"] is plain_value for name in calls)


def source_of(name):
    file = getattr(sys.modules[name], "__file__", None)
    return Path(file).read_text() if file and file.endswith(".py") else ""


@pytest.mark.parametrize(
    "text", ["(0.9, 0.98)", "[(512, 3)] * 2 + [(256, 1)]", "{'a': [1, None]}", "True", "-1e-3", " 3 ", "2 * 3", "'a'"]
)
def test_plain_values_are_read_as_python_reads_them(text):
    assert plain_value(text) == eval(text.strip())


@pytest.mark.parametrize(
    "text",
    [
        "a",
        "f()",
        "[x for x in (1,)]",
        "1 if 1 else 2",
        "[1] * 10**9",
        "'a' * 100000",
        "(" * 5000,
        "1" * 20000,
        "",
        "a b",
        "().__class__",
        "[[0] * 9999] * 9999 * 2",
        "f'{1}'",
        "lambda: 1",
        "\x00",
        "9**9**9",
        "[1] + 2",
    ],
)
def test_anything_else_is_no_plain_value(text):
    with pytest.raises(UsageError, match="not a plain value"):
        plain_value(text)


def test_an_interpolation_is_refused(state):
    for value in ("${common.seed}", "a ${oc.env:HOME}", ["${x}"]):
        config = with_value(state["cfg"], ("task", "data"), value)
        with pytest.raises(UsageError, match=r"option task\.data of the checkpoint is an interpolation.*: here; "):
            check_configuration({"cfg": config}, "here")


def test_the_names_are_those_of_what_is_trained_here(state):
    check_configuration({"cfg": state["cfg"]}, "here")  # nothing to say of what this package trained
    for field in ("task", "model", "criterion", "optimizer", "lr_scheduler"):
        config = with_value(state["cfg"], (field, "_name"), "translation")
        with pytest.raises(
            UsageError, match=rf"option {field}\._name of the checkpoint is 'translation', expected one of"
        ):
            check_configuration({"cfg": config}, "here")


def test_unknown_options_are_left_out_with_a_warning(state, caplog):
    config = with_value(with_value(state["cfg"], ("model", "new_option"), 3), ("other",), {"x": 1})
    checked = {"cfg": config}
    check_configuration(checked, "here")
    assert "new_option" not in vars(checked["cfg"]["model"])
    assert "other" not in checked["cfg"]
    assert caplog.messages == ["2 unknown options of here are ignored: model.new_option, other"]


@pytest.mark.parametrize(
    "field,value",
    [
        *[("model.encoder_layers", 10**9), ("model.encoder_embed_dim", 10**6), ("model.encoder_ffn_embed_dim", 10**7)],
        *[("task.max_positions", 10**12), ("task.num_classes", 10**9), ("task.mgcrp_q", 10**5)],
        *[("task.svpn_iters", 10**9)],
    ],
)
def test_a_size_that_no_tensor_has_asks_for_no_memory(field, value, state, trained, monkeypatch):
    config = with_value(state["cfg"], tuple(field.split(".")), value)
    monkeypatch.setattr(checkpoint_file, "read_checkpoint", lambda *_, **__: {**state, "cfg": config})
    for load in (sot_fairseq.from_pretrained, build_all):
        with pytest.raises(UsageError, match=rf"option {re.escape(field)} .*of the checkpoint is {value}, its tensors"):
            load(trained / "checkpoint_best.pt")


@pytest.mark.parametrize("pooling, heads, q", [("moment", 300, 2000), ("gcp", 1, 10_000), ("dropcov", 1, 10_000)])
def test_a_pooling_wider_than_the_tensors_asks_for_no_memory(pooling, heads, q, state, trained, monkeypatch):
    config = state["cfg"]
    for name, value in (("head_pooling", pooling), ("mgcrp_heads", heads), ("mgcrp_q", q)):
        config = with_value(config, ("task", name), value)
    large = {"classification_heads.sentence_classification_head.large": torch.zeros(10_000)}
    damaged = {**state, "cfg": config, "model": {**state["model"], **large}}
    monkeypatch.setattr(checkpoint_file, "read_checkpoint", lambda *_, **__: damaged)
    with pytest.raises(
        UsageError, match=r"option task\.\S* ?.*mgcrp_q.* of the checkpoint is .*, its tensors allow 10000"
    ):
        sot_fairseq.from_pretrained(trained / "checkpoint_best.pt")
