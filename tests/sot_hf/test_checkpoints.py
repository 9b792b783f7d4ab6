"""Output folders of interrupted and of earlier runs: nothing is lost, mixed up or taken for whole."""

import json
import shutil

import pytest
import torch

from sot_base.errors import UsageError
from sot_hf.run_glue import main
from tests.sot_hf.test_run_glue import weights, words

RUN = ("--task_name", "RTE", "--do_train", "--do_eval", "--num_train_epochs", "2", "--save_steps", "3")
RUN += ("--head-dropout", "0.3")


@pytest.fixture(scope="module")
def whole(bert_folder, rte, tmp_path_factory):
    output = tmp_path_factory.mktemp("whole") / "out"
    main(words(bert_folder, rte, output, *RUN, "--eval_all_checkpoints"))
    return output


@pytest.fixture
def broken(whole, tmp_path):
    shutil.copytree(whole / "checkpoint-6", tmp_path / "out" / "checkpoint-6")
    return tmp_path / "out"


def test_a_run_killed_while_saving_goes_on_to_the_same_weights(whole, bert_folder, rte, tmp_path, monkeypatch):
    output, save, saves = tmp_path / "out", torch.save, []

    def killed_at_the_eighth_file(*args, **kwargs):
        saves.append(args)
        if len(saves) == 8:
            raise KeyboardInterrupt
        save(*args, **kwargs)

    with monkeypatch.context() as patch:
        patch.setattr(torch, "save", killed_at_the_eighth_file)
        with pytest.raises(KeyboardInterrupt):
            main(words(bert_folder, rte, output, *RUN))
    assert not (output / "checkpoint-6").exists()
    (output / "checkpoint-99").mkdir()
    main(words(bert_folder, rte, output, *RUN, "--resume_from_checkpoint", "last"))
    kept = {path.name for path in output.glob("checkpoint-*")}
    assert "checkpoint-12" in kept
    assert len(kept) <= 2  # the best and the last
    for mine, theirs in ((output, whole), (output / "checkpoint-12", whole / "checkpoint-12")):
        expected = weights(theirs)
        assert all(torch.equal(value, expected[key]) for key, value in weights(mine).items())


@pytest.mark.parametrize("file", ["optimizer.pt", "rng_state.pth", "model.safetensors", "trainer_state.json"])
def test_checkpoints_that_are_cut_off(file, broken, bert_folder, rte):
    path = broken / "checkpoint-6" / file
    path.write_bytes(path.read_bytes()[:60])
    with pytest.raises(UsageError, match=f"{file} is cut off or broken: .*checkpoint-6; give another one"):
        main(words(bert_folder, rte, broken, *RUN, "--resume_from_checkpoint", "last"))
    if file != "trainer_state.json":
        path.unlink()
        with pytest.raises(UsageError, match=f"it lacks {file.partition('.')[0]}"):
            main(words(bert_folder, rte, broken, *RUN, "--resume_from_checkpoint", broken / "checkpoint-6"))


def test_a_checkpoint_of_another_model_is_refused(broken, whole, bert_folder, rte, tmp_path):
    with pytest.raises(UsageError, match=r"other labels or another head: .*checkpoint-6"):
        main(words(bert_folder, rte, broken, *RUN, "--mgcrp-q", "7", "--resume_from_checkpoint", "last"))
    own = ("--text_columns", "sentence1", "--label_column", "label", "--labels", "not_entailment,entailment")
    main(words(bert_folder, rte, tmp_path / "o", *own, "--do_train", "--max_steps", "1", "--save_strategy", "no"))
    with pytest.raises(UsageError, match=r"other labels or another head: .*checkpoint-3"):
        main(words(tmp_path / "o", rte, whole, *own, "--do_eval", "--eval_all_checkpoints"))


def test_an_earlier_run_is_replaced_only_where_that_is_asked_for_and_can_be_done(broken, bert_folder, rte, tmp_path):
    short = ("--task_name", "RTE", "--do_train", "--max_steps", "1", "--save_strategy", "no")
    with pytest.raises(UsageError, match=r"checkpoint-6 of an earlier run: .*--resume_from_checkpoint last, --over"):
        main(words(bert_folder, rte, broken, *short))
    with pytest.raises(UsageError, match="no such model folder"):
        main(words(tmp_path / "nowhere", rte, broken, *short, "--overwrite_output_dir"))
    assert (broken / "checkpoint-6").exists()
    (broken / "checkpoint-best").mkdir()  # the user's
    main(words(bert_folder, rte, broken, *short, "--overwrite_output_dir"))
    assert not (broken / "checkpoint-6").exists()
    assert (broken / "checkpoint-best").exists()
    with pytest.raises(UsageError, match=r"model.safetensors of an earlier run: .*; give --overwrite_output_dir"):
        main(words(bert_folder, rte, broken, *short))
    own = ("--text_columns", "sentence1", "--label_column", "label", "--labels", "not_entailment,entailment")
    main(words(bert_folder, rte, broken, *own, *short[2:], "--overwrite_output_dir"))
    assert "- labels: not_entailment, entailment" in (broken / "README.md").read_text()


def test_a_diverging_run_stops_and_saves_no_model(bert_folder, rte, tmp_path):
    command = words(bert_folder, rte, tmp_path / "out", "--task_name", "RTE", "--do_train", "--max_steps", "5")
    command[command.index("--learning_rate") + 1] = "1e30"
    with pytest.raises(UsageError, match="the loss is not finite, training has diverged: step 2"):
        main(command)
    assert not (tmp_path / "out" / "model.safetensors").exists()


def test_test_files_are_read_before_the_training_and_without_their_labels(bert_folder, rte, tmp_path):
    data = shutil.copytree(rte, tmp_path / "data")
    command = ("--task_name", "RTE", "--do_train", "--do_predict", "--max_steps", "1", "--save_strategy", "no")
    text = (data / "test.tsv").read_text()
    (data / "test.tsv").write_text(text.replace("\n1\t", "\n0\t"))
    with pytest.raises(UsageError, match="'0' is repeated"):
        main(words(bert_folder, data, tmp_path / "out", *command))
    (data / "test.tsv").unlink()
    with pytest.raises(UsageError, match="no test file to predict"):
        main(words(bert_folder, data, tmp_path / "out", *command))
    assert not (tmp_path / "out").exists()
    head, *rows = text.splitlines()
    (data / "test.tsv").write_text("\n".join([f"{head}\tlabel", *(f"{row}\thidden" for row in rows)]) + "\n")
    main(words(bert_folder, data, tmp_path / "out", *command))
    assert len((tmp_path / "out" / "RTE.tsv").read_text().splitlines()) == 6


def change(path, *keys, value):
    content = torch.load(path, weights_only=False)
    place = content
    for key in keys[:-1]:
        place = place[key]
    place[keys[-1]] = value
    torch.save(content, path)


class Runs:
    def __reduce__(self):
        return exec, ("raise SystemExit('it ran')",)


@pytest.mark.parametrize(
    "file,keys,value",
    [
        ("optimizer.pt", ("param_groups",), []),
        ("optimizer.pt", ("param_groups", 0, "lr"), "0.1"),
        ("optimizer.pt", ("param_groups", 0, "betas"), None),
        ("optimizer.pt", ("state", 0, "exp_avg"), torch.zeros(3)),
        ("optimizer.pt", ("state", 0), [1]),
        ("optimizer.pt", ("state",), "text"),
        ("optimizer.pt", ("state", 0, "exp_avg"), Runs()),
        ("scheduler.pt", ("last_epoch",), "text"),
        ("scheduler.pt", ("optimizer",), "text"),
        ("scheduler.pt", ("_last_lr",), [[]]),
        ("scheduler.pt", ("step",), Runs()),
        ("rng_state.pth", ("python",), (3, (1, 2), None)),
        ("rng_state.pth", ("cpu",), torch.zeros(3)),
        ("rng_state.pth", ("numpy",), ("text",)),
        ("rng_state.pth", ("cpu",), Runs()),
    ],
)
def test_states_that_are_not_of_the_training(file, keys, value, broken, bert_folder, rte):
    change(broken / "checkpoint-6" / file, *keys, value=value)
    with pytest.raises(UsageError) as caught:
        main(words(bert_folder, rte, broken, *RUN, "--resume_from_checkpoint", "last"))
    assert str(caught.value).startswith("cannot resume, ")
    assert file.partition(".")[0] in str(caught.value)
    assert "\n" not in str(caught.value)
    if isinstance(value, Runs):
        assert "which safe loading refuses" in str(caught.value)


@pytest.mark.parametrize("change_to", [{"global_step": "6"}, {"epoch": []}, {"log_history": {}}, {"max_steps": None}])
def test_a_damaged_state_of_the_training(change_to, broken, bert_folder, rte):
    path = broken / "checkpoint-6" / "trainer_state.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **change_to}))
    with pytest.raises(UsageError, match=r"trainer_state\.json is cut off or broken"):
        main(words(bert_folder, rte, broken, *RUN, "--resume_from_checkpoint", "last"))


@pytest.mark.parametrize(
    "file, near, offset",
    [
        *[("optimizer.pt", b"betas", 2), ("rng_state.pth", b"numpy", 2), ("scheduler.pt", b"last_epoch", 2)],
        ("model.safetensors", b"}}", 99),  # behind the end of the header
    ],
)
def test_a_flipped_bit_is_found(file, near, offset, broken, bert_folder, rte):
    path = broken / "checkpoint-6" / file
    content = bytearray(path.read_bytes())
    content[content.index(near) + offset] ^= 4
    path.write_bytes(content)
    with pytest.raises(UsageError, match=f"{file} is cut off or broken: .*checkpoint-6; give another one"):
        main(words(bert_folder, rte, broken, *RUN, "--resume_from_checkpoint", "last"))
