"""What an embedding request may ask for: a text or a list of texts."""

import pytest
from pydantic import ValidationError

from schemas.embeddings import EmbeddingRequest


def test_one_text_is_a_list_of_one() -> None:
    asked = EmbeddingRequest.model_validate(
        {"kind": "embedding-request.v1", "id": "a", "model": "m", "input": "hello"}
    )
    assert list(asked.input) == ["hello"]


@pytest.mark.parametrize("given", [5, None, {"text": "hello"}])
def test_anything_else_is_refused_in_words_of_the_message(given: object) -> None:
    body = {"kind": "embedding-request.v1", "id": "a", "model": "m", "input": given}
    with pytest.raises(ValidationError, match="input should be a text or a list of 1 to"):
        EmbeddingRequest.model_validate(body)
