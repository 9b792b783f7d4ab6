"""Undo the tokenization of treebank text, as SST-2 has it, before a sub-word tokenizer that was trained on plain text.

``it does n't work , `` really ''`` becomes ``it doesn't work, "really"``: the signs of the Penn Treebank are replaced
here, the blanks are those that `sacremoses` (Moses' ``detokenizer.perl``) leaves.
"""

from __future__ import annotations

from sot_base.errors import UsageError

__all__ = ["MosesDetokenizer"]

TREEBANK = {"``": '"', "''": '"', "-LRB-": "(", "-RRB-": ")", "-LSB-": "[", "-RSB-": "]", "-LCB-": "{", "-RCB-": "}"}


class MosesDetokenizer:
    """Turn tokenized English text into plain text.

    Raises:
        UsageError: If the package `sacremoses` is not installed.

    Example:
        >>> MosesDetokenizer()("a film that does n't try , and it 's good .")
        "a film that doesn't try, and it's good."
    """

    def __init__(self) -> None:
        try:
            import sacremoses
        except ImportError:
            raise UsageError(
                "the package sacremoses is not installed: --moses-detokenize; run pip install sacremoses"
            ) from None
        self._moses = sacremoses.MosesDetokenizer(lang="en")

    def __call__(self, text: str) -> str:
        tokens: list[str] = []
        for token in text.split():
            if token.lower() == "n't" and tokens:
                tokens[-1] += token
            else:
                tokens.append(TREEBANK.get(token.upper(), token))
        return self._moses.detokenize(tokens)
