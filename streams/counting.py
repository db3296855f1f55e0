"""How many tokens a prompt has, by the tokenizer that a model's profile names. No network.

The worker tokenises with the same code, so the KV that the cell reserves is exactly enough.
"""

from schemas.profile import Profile
from services.worker.minilm_tokenizer import count_text_tokens
from services.worker.tokenizer import count_prompt_tokens
from streams.admission import Countable, CountTokens


def counter_of(profile: Profile) -> CountTokens:
    """Return the function that counts the prompt tokens of requests to the profile's model.

    A prompt that cannot fit into the context is not counted to its end: the number is then a lower
    bound above the context.
    """
    limit = profile.max_sequence_tokens
    if profile.tokenizer == "minilm":

        def wordpieces(asked: Countable) -> int:
            return count_text_tokens(asked.prompt or "", limit)

        return wordpieces
    if profile.tokenizer == "smollm2":

        def exactly(asked: Countable) -> int:
            return count_prompt_tokens(asked.prompt, asked.messages, limit)

        return exactly

    def by_bytes(asked: Countable) -> int:
        """Count a token for each `bytes_per_token` bytes, rounded up."""
        texts = [asked.prompt or "", *(turn.content for turn in asked.messages or ())]
        return -(-sum(len(text.encode()) for text in texts) // profile.bytes_per_token)

    return by_bytes
