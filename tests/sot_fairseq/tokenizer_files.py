"""Small tokenizers and nasty texts for the tests of the text input side."""

import json
from pathlib import Path

import sentencepiece
from tokenizers import ByteLevelBPETokenizer

SENTENCES = [
    "The sailors rode the breeze clear of the rocks.",
    "They're sure that he'll say it isn't what we've seen, or I'd know.",
    "In 1998 the 2,490 pairs were read twice; nobody counted the third time!",
    "Der Fluß fließt über die Brücke, naïve café, 東京 und Москва.",
]

MERGED = ["Kim's dog's cat's", "four    blanks   and three"]

# No line feed in any of them: each can be a field of a TSV file.
NASTY = [
    "",
    " ",
    "   ",
    "  leading and trailing  ",
    "two  blanks   three    four",
    "no-break\xa0space and\u2003em space\u3000ideographic",
    "\xa0",
    "\u2028line\u2028separator\u2029paragraph\x85next line",
    "vertical\x0btab form\x0cfeed file\x1cgroup\x1drecord\x1eunit\x1f separators\x1f",
    "zero\u200bwidth joi\u200dner soft\xadhyphen b\ufeffom",
    "nul\x00 bell\x07 del\x7f escape\x1b[0m",
    "emoji 👩‍👩‍👧‍👦 🇩🇪 ☃️ 😀😀 x😀y",
    "combining e\u0301 a\u030a\u0323 \u0301 alone",
    "math 𝔘𝔫𝔦 𝟙𝟚 ½ ² Ⅷ ①",  # noqa: RUF001
    "中文句子。日本語 한국어 ไทย العربية עברית हिन्दी",
    "İstanbul ǅ ß ẞ ﬁ Σίσυφος ς",
    "it's IT'S we'll've 'tis ''s 's's o'clock x'sy 've",
    "quotes \"unbalanced ``tick'' “curly” ‘single’",  # noqa: RUF001
    "a" * 300,
    "supercalifragilisticexpialidocious" * 10 + " end",
    "1234567890 12.5% $3,000 -5 1e-9 3rd",
    "<|endoftext|> <s> </s> <pad> <unk> <mask> [CLS] [SEP] [MASK] ##ing",
    "\u0558\u088f'l\u1c89 new letters \U0001df2b'd",
    "NA null None nan",
    "punct!!!??... --- ___ ### @user #tag http://x.y/z?a=b&c",
]


def tiny_gpt2(folder: Path) -> Path:
    """Write a byte-level BPE of a few words; the id of ``the`` has no line in the dictionary."""
    folder.mkdir(parents=True, exist_ok=True)
    bpe = ByteLevelBPETokenizer()
    bpe.train_from_iterator(SENTENCES * 2 + MERGED * 50, vocab_size=400, min_frequency=2, show_progress=False)
    assert {"'s", "ĠĠ"} <= bpe.get_vocab().keys()  # with them a word cut at the wrong place shows
    encoder_file, merges_file = map(Path, bpe.save_model(str(folder)))
    encoder = json.loads(encoder_file.read_text(encoding="utf-8"))
    encoder_file.rename(folder / "encoder.json")
    merges_file.rename(folder / "vocab.bpe")
    numbers = sorted(encoder.values(), key=lambda number: (number * 7919) % 401)
    numbers.remove(encoder["Ġthe"])
    lines = [f"{number} {number * 3}\n" for number in numbers] + ["madeupword0000 0\n"]
    (folder / "dict.txt").write_text("".join(lines))
    return folder


def tiny_wordpiece(folder: Path, cased: bool = False) -> Path:
    """Write a WordPiece ``vocab.txt`` and give its path."""
    folder.mkdir(parents=True, exist_ok=True)
    words = " ".join(SENTENCES) if cased else " ".join(SENTENCES).lower()
    letters = sorted({letter for letter in words if not letter.isspace()})
    whole = sorted({word.strip(".,;!") for word in words.split() if "'" not in word} - set(letters))
    vocab = ["[PAD]", "[unused0]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *letters, *whole]
    vocab += [f"##{letter}" for letter in letters if letter.isalnum()]
    path = folder / "vocab.txt"
    path.write_text("".join(f"{piece}\n" for piece in vocab), encoding="utf-8")
    return path


def tiny_sentencepiece(folder: Path, sentences: list[str] = SENTENCES, **options) -> Path:
    """Write a sentencepiece model and a ``dict.txt`` in another order, in which one piece has no line."""
    folder.mkdir(parents=True, exist_ok=True)
    settings = {"vocab_size": 150, "hard_vocab_limit": False, "character_coverage": 0.98, "minloglevel": 2, **options}
    with (folder / "sentencepiece.bpe.model").open("wb") as model:
        sentencepiece.SentencePieceTrainer.train(sentence_iterator=iter(sentences * 3), model_writer=model, **settings)
    processor = sentencepiece.SentencePieceProcessor(model_file=str(folder / "sentencepiece.bpe.model"))
    pieces = [processor.id_to_piece(number) for number in range(3, len(processor))]
    missing = processor.encode("the", out_type=str)[0]
    order = sorted((piece for piece in pieces if piece.strip() and piece != missing), key=lambda x: (len(x), x[::-1]))
    (folder / "dict.txt").write_text("".join(f"{piece} {len(piece)}\n" for piece in order), encoding="utf-8")
    return folder
