"""All nine GLUE tasks in their files' layouts, with a few rows of words made here."""

import random
from pathlib import Path

from tests.sot_text.test_glue import HEADERS

LABELS = {
    "CoLA": ["0", "1"],
    "RTE": ["entailment", "not_entailment"],
    "SST-2": ["0", "1"],
    "MNLI": ["entailment", "neutral", "contradiction"],
    "QNLI": ["entailment", "not_entailment"],
    "MRPC": ["0", "1"],
    "QQP": ["0", "1"],
    "WNLI": ["0", "1"],
}
TEXTS = {"sentence", "sentence1", "sentence2", "question", "question1", "question2", "#1 String", "#2 String"}
LABEL_COLUMNS = {"label", "gold_label", "Quality", "is_duplicate", "score"}
COUNTS = {"train": 24, "dev": 10, "dev_matched": 10, "dev_mismatched": 7}


def write_glue(folder: Path, words: list[str], tasks=(*LABELS, "STS-B")) -> Path:
    """Write train and dev files; CoLA's have no header, and its dev file no newline at the end."""
    rng = random.Random(1)
    for task in tasks:
        names = ("train", "dev_matched", "dev_mismatched") if task == "MNLI" else ("train", "dev")
        for name in names:
            header = ["source", "label", "mark", "sentence"] if task == "CoLA" else HEADERS[task, f"{name}.tsv"]
            rows = [] if task == "CoLA" else [header]
            for number in range(COUNTS[name]):
                text = {column: " ".join(rng.choices(words, k=rng.randint(1, 6))) for column in header}
                label = f"{rng.uniform(0, 5):.3f}" if task == "STS-B" else LABELS[task][number % len(LABELS[task])]
                rows.append([text[c] if c in TEXTS else label if c in LABEL_COLUMNS else str(number) for c in header])
            (folder / task).mkdir(parents=True, exist_ok=True)
            end = "" if (task, name) == ("CoLA", "dev") else "\n"
            (folder / task / f"{name}.tsv").write_text("\n".join("\t".join(row) for row in rows) + end)
    return folder
