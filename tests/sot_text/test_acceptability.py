"""The demo corpus: its format, its balance, what dev keeps from train, and that the minimal pairs are minimal."""

import difflib
import hashlib
import itertools
import os
import re
import subprocess
import sys
from collections import Counter

import pytest

from sot_base.errors import UsageError
from sot_text.acceptability import VIOLATIONS, make_corpus
from sot_text.acceptability.__main__ import main
from sot_text.acceptability.grammar import Draw
from sot_text.acceptability.lexicon import MODIFIERS, NOUNS, VERBS, is_held_out

SEEDS = (1, 2, 3)
PERMUTED = {  # the two sentences have the same words
    "scrambled_words",
    "constituent_order",
    "word_order",
    "polarity",
    "island",
    "animate_subject",
}


def words(sentence):
    """Split off punctuation; case does not matter, since the first word has a capital."""
    return re.findall(r"\w+", sentence.lower())


@pytest.fixture(scope="module")
def corpora():
    return {seed: make_corpus(seed) for seed in SEEDS}


@pytest.fixture
def run(monkeypatch):
    """Give the command as a function of its arguments."""

    def command(*arguments):
        monkeypatch.setattr(sys, "argv", ["acceptability", *map(str, arguments)])
        main()

    return command


@pytest.fixture(scope="module")
def pairs():
    draw = Draw("pairs", held_out=True)
    return {name: [draw.new_sentence(violation) for _ in range(1000)] for name, violation in VIOLATIONS.items()}


def test_the_command_writes_the_same_bytes_everywhere(tmp_path):
    """Whatever the hashes of this run: the digests are this version's, a change of the corpus changes them."""
    arguments = ["--seed", "7", "--train-rows", "300", "--dev-rows", "100"]
    subprocess.run(
        [sys.executable, "-m", "sot_text.acceptability", tmp_path / "out", *arguments],
        env={**os.environ, "PYTHONHASHSEED": "12345"},
        check=True,
        timeout=120,
    )
    digests = {path.name: hashlib.sha256(path.read_bytes()).hexdigest()[:16] for path in (tmp_path / "out").iterdir()}
    assert digests == {"dev.tsv": "a7bfd33ed49b97d2", "train.tsv": "ba6dc8acdf3568b4"}


def test_the_command_writes_colas_format(tmp_path, run):
    run(tmp_path, "--seed", 5, "--train-rows", 60, "--dev-rows", 30)
    for split, rows in make_corpus(5, 60, 30)._asdict().items():
        lines = (tmp_path / f"{split}.tsv").read_bytes().decode().split("\n")
        assert lines.pop() == ""
        fields = [line.split("\t") for line in lines]
        assert [(source, label, sentence) for source, label, _, sentence in fields] == [
            (row.violation, "1" if row.acceptable else "0", row.sentence) for row in rows
        ]
        assert all(mark == {"1": "", "0": "*"}[label] for _, label, mark, _ in fields)


def test_the_commands_defaults(tmp_path, run, capsys):
    run(tmp_path / "new" / "folder")
    for split, rows in make_corpus(1, 2000, 500)._asdict().items():
        assert (tmp_path / "new" / "folder" / f"{split}.tsv").read_text() == "".join(row.to_tsv() for row in rows)
    printed = capsys.readouterr().out.splitlines()
    assert printed[0] == f"{tmp_path / 'new' / 'folder' / 'train'}.tsv: 2000 sentences, 50.0% acceptable"
    assert printed[1] == f"{tmp_path / 'new' / 'folder' / 'dev'}.tsv: 500 sentences, 50.0% acceptable"


@pytest.mark.parametrize("option, value", [("--train-rows", 0), ("--dev-rows", -1)])
def test_a_bad_number_of_rows_leaves_nothing(tmp_path, run, option, value):
    with pytest.raises(UsageError, match=f"not a number of rows: {value} for"):
        run(tmp_path / "out", option, value)
    assert not (tmp_path / "out").exists()


def test_an_output_that_is_a_file(tmp_path):
    (tmp_path / "out").write_text("mine")
    command = [sys.executable, "-m", "sot_text.acceptability", tmp_path / "out"]
    result = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert (result.returncode, result.stdout) == (2, "")
    assert result.stderr == f"error: not a folder: {tmp_path / 'out'}; name a folder, it is made if need be\n"
    assert (tmp_path / "out").read_text() == "mine"


def test_more_rows_than_there_are_sentences(monkeypatch):
    pair = VIOLATIONS["island"](Draw("one", held_out=False))
    monkeypatch.setitem(VIOLATIONS, "island", lambda draw: pair)
    with pytest.raises(UsageError, match=r"too many rows: 100 for dev; .* island"):
        make_corpus(1, 100, 100)


@pytest.mark.parametrize("seed", SEEDS)
def test_rows_labels_and_violations(corpora, seed):
    for rows, number in zip(corpora[seed], (2000, 500), strict=True):
        assert len(rows) == number
        assert sum(row.acceptable for row in rows) == number // 2
        count = Counter((row.violation, row.acceptable) for row in rows)
        assert set(count) == {(name, acceptable) for name in VIOLATIONS for acceptable in (True, False)}
        assert all(abs(count[name, True] - count[name, False]) <= 4 for name in VIOLATIONS)


def test_the_order_of_rows_says_nothing(corpora):
    rows = corpora[1].train
    same = sum(one.acceptable == other.acceptable for one, other in itertools.pairwise(rows))
    assert 900 < same < 1100


def test_seeds_differ_and_dev_does_not_depend_on_the_train_rows(corpora):
    one, other = ({row.sentence for row in corpora[seed].dev} for seed in (1, 2))
    assert len(one & other) < 0.02 * len(one)
    assert make_corpus(1, train_rows=10).dev == corpora[1].dev


@pytest.mark.parametrize("seed", SEEDS)
def test_no_sentence_twice_and_dev_apart_from_train(corpora, seed):
    sentences = [row.sentence for rows in corpora[seed] for row in rows]
    assert len(set(sentences)) == len(sentences) == 2500


def test_only_one_half_of_a_pair_is_used_with_its_label(monkeypatch):
    other_half, good = {}, set()

    def recording(violation):
        def make(draw):
            pair = violation(draw)
            other_half[pair.good], other_half[pair.bad] = pair.bad, pair.good
            good.add(pair.good)
            return pair

        return make

    for name, violation in list(VIOLATIONS.items()):
        monkeypatch.setitem(VIOLATIONS, name, recording(violation))
    rows = [row for rows in make_corpus(4, 600, 200) for row in rows]
    sentences = {row.sentence for row in rows}
    assert len(sentences) == 800
    assert not sentences & {other_half[sentence] for sentence in sentences}
    assert all(row.acceptable == (row.sentence in good) for row in rows)


def forms_of(table):
    return {form.lower(): word for entries in table.values() for word in entries for form in word.forms}


@pytest.mark.parametrize("table", [NOUNS, VERBS], ids=["nouns", "verbs"])
@pytest.mark.parametrize("seed", SEEDS)
def test_dev_has_words_that_train_has_not(corpora, seed, table):
    lexemes = forms_of(table)
    found = [
        [lexemes[word] for row in rows for word in words(row.sentence) if word in lexemes] for rows in corpora[seed]
    ]
    seen, dev = set(found[0]), found[1]
    unseen_types = {word for word in dev if word not in seen}
    assert len(unseen_types) >= 0.3 * len(set(dev))
    assert sum(word in unseen_types for word in dev) >= 0.3 * len(dev)


@pytest.mark.parametrize("seed", SEEDS)
def test_held_out_words_are_nowhere_in_train(corpora, seed):
    tables = [*NOUNS.values(), *VERBS.values(), *MODIFIERS.values()]
    held_out = {
        form.lower()
        for entries in tables
        for i, word in enumerate(entries)
        if is_held_out(i)
        for form in ((word,) if isinstance(word, str) else word.forms)
    }
    assert len(held_out) > 250
    assert not held_out & {word for row in corpora[seed].train for word in words(row.sentence)}
    assert len(held_out & {word for row in corpora[seed].dev for word in words(row.sentence)}) > 100


def test_no_form_belongs_to_two_words():
    tables = [*NOUNS.values(), *VERBS.values()]
    lexemes = [word for entries in tables for word in entries]
    owners = Counter(form.lower() for word in lexemes for form in set(word.forms))
    owners.update(word for entries in MODIFIERS.values() for word in entries)
    assert [form for form, number in owners.items() if number > 1] == []


def test_inflection():
    verbs = {verb.base: verb.forms for entries in VERBS.values() for verb in entries}
    assert verbs["permit"] == ("permit", "permits", "permitted", "permitted", "permitting")
    assert verbs["accompany"] == ("accompany", "accompanies", "accompanied", "accompanied", "accompanying")
    assert verbs["purchase"] == ("purchase", "purchases", "purchased", "purchased", "purchasing")
    assert verbs["watch"] == ("watch", "watches", "watched", "watched", "watching")
    assert verbs["give"] == ("give", "gives", "gave", "given", "giving")
    assert verbs["sleep"] == ("sleep", "sleeps", "slept", "slept", "sleeping")
    nouns = {noun.singular: noun.plural for entries in NOUNS.values() for noun in entries}
    assert (nouns["puppy"], nouns["boy"], nouns["witch"], nouns["man"]) == ("puppies", "boys", "witches", "men")


@pytest.mark.parametrize("name", VIOLATIONS)
def test_a_pair_differs_by_its_violation_only(pairs, name):
    for good, bad in pairs[name]:
        assert good != bad
        one, other = words(good), words(bad)
        if name in PERMUTED:
            assert sorted(re.sub(r"^an$", "a", word) for word in one) == sorted(
                re.sub(r"^an$", "a", word) for word in other
            )
            continue
        changes = [
            change for change in difflib.SequenceMatcher(None, one, other, False).get_opcodes() if change[0] != "equal"
        ]
        assert len(changes) == 1, (good, bad)
        _, start, end, other_start, other_end = changes[0]
        assert max(end - start, other_end - other_start) <= (4 if name == "filler_gap" else 2), (good, bad)


@pytest.mark.parametrize("name", VIOLATIONS)
def test_no_word_and_no_length_is_more_often_good_than_bad(pairs, name):
    """Over many pairs the two sides balance: a fair coin's bound on the surplus of every word, and of the length."""
    surplus, pairs_that_differ = Counter(), Counter()
    for good, bad in pairs[name]:
        change = Counter(re.sub(r"^an$", "a", word) for word in words(good))
        change.subtract(re.sub(r"^an$", "a", word) for word in words(bad))
        change["<length>"] = len(words(good)) - len(words(bad))
        surplus.update(change)
        pairs_that_differ.update(word for word, difference in change.items() if difference)
    assert pairs_that_differ or name in PERMUTED
    for word, number in pairs_that_differ.items():
        assert abs(surplus[word]) <= 5 * number**0.5 * (4 if word == "<length>" else 1), (word, surplus[word], number)


def test_no_open_class_word_twice_in_a_sentence(pairs):
    lexemes = forms_of(NOUNS) | forms_of(VERBS)
    for pair in (pair for drawn in pairs.values() for pair in drawn):
        found = [lexemes[word] for word in words(pair.good) if word in lexemes]
        assert len(set(found)) == len(found), pair.good


def test_no_sentence_is_both_good_and_bad(pairs):
    good = {pair.good for drawn in pairs.values() for pair in drawn}
    bad = {pair.bad for drawn in pairs.values() for pair in drawn}
    assert len(good) > 0.9 * 1000 * len(VIOLATIONS)
    assert not good & bad


def test_sentences_are_written_as_english_is(pairs):
    for pair in (pair for drawn in pairs.values() for pair in drawn):
        for sentence in pair:
            assert re.fullmatch(r"[A-Z][A-Za-z,]*( [A-Za-z,]+)+[.?]", sentence), sentence
            assert not re.search(r"\ba [aeiou]|\ban [^aeiou]", sentence, re.IGNORECASE), sentence


def has_an_article_without_its_noun(text):
    may_follow = {*forms_of(NOUNS), *itertools.chain(*MODIFIERS.values())}
    return any(word == "the" and after not in may_follow for word, after in itertools.pairwise([*text, ""]))


def has_the_auxiliarys_form(text):
    verbs = forms_of(VERBS)
    auxiliaries = {"base": "will must should could", "participle": "has had", "gerund": "is was"}
    needed = {word: form for form, entries in auxiliaries.items() for word in entries.split()}
    start = next(i for i, word in enumerate(text) if word in needed and text[i + 1] != "clear")
    verb = next(word for word in text[start:] if word in verbs)
    return verb == getattr(verbs[verb], needed[text[start]])


def has_the_case_of_its_place(text):
    nominative, accusative = {"i", "he", "she", "we", "they"}, {"me", "him", "her", "us", "them"}
    place = max(i for i, word in enumerate(text) if word in nominative | accusative)
    return (text[place] in nominative) == (place == 0 or text[place - 1] == "that")


def has_its_negative_above(text):
    sentence = " ".join(text)
    return bool(re.match(r"no \w+ that|the \w+ who has \w+ the \w+ has not|if the \w+ ever", sentence))


@pytest.mark.parametrize(
    "name, rule",
    [
        ("scrambled_words", lambda text: not has_an_article_without_its_noun(text)),
        ("verb_form", has_the_auxiliarys_form),
        ("pronoun_case", has_the_case_of_its_place),
        ("polarity", has_its_negative_above),
    ],
)
def test_the_good_half_keeps_the_rule_and_the_bad_half_breaks_it(pairs, name, rule):
    for good, bad in pairs[name]:
        assert rule(words(good)), good
        assert not rule(words(bad)), bad


def test_a_short_sentence_agrees_or_not(pairs):
    """The number of "The nurse is tired", where nothing stands between the subject and its verb."""
    singular = {noun.singular for entries in NOUNS.values() for noun in entries}
    checked = 0
    for pair in pairs["number_agreement"]:
        for sentence, good in zip(pair, (True, False), strict=True):
            if match := re.match(r"The (\w+) (is|are|was|were|has|have) ", sentence):
                assert (match[1] in singular) == ((match[2] in ("is", "was", "has")) == good), sentence
                checked += 1
    assert checked > 100


def test_neither_words_nor_length_tell_the_label(corpora):
    text = pytest.importorskip("sklearn.feature_extraction.text")
    linear = pytest.importorskip("sklearn.linear_model")
    metrics = pytest.importorskip("sklearn.metrics")
    scores = {"words": [], "length": []}
    for train, dev in corpora.values():
        labels, gold = ([row.acceptable for row in rows] for rows in (train, dev))
        vectorizer = text.CountVectorizer(token_pattern=r"\w+|[.?]")
        features = vectorizer.fit_transform(row.sentence for row in train)
        model = linear.LogisticRegression(max_iter=1000).fit(features, labels)
        predicted = model.predict(vectorizer.transform(row.sentence for row in dev))
        scores["words"].append(metrics.matthews_corrcoef(gold, predicted))
        lengths = [[[len(words(row.sentence)), len(row.sentence)] for row in rows] for rows in (train, dev)]
        model = linear.LogisticRegression(max_iter=1000).fit(lengths[0], labels)
        scores["length"].append(metrics.matthews_corrcoef(gold, model.predict(lengths[1])))
    for name, values in scores.items():
        assert max(values) < 0.15, (name, values)
        assert sum(values) / len(values) < 0.1, (name, values)
