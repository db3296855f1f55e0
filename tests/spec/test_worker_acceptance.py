"""Work that grows begins with fewer blocks, and never comes to need more than the cell knows of."""

from dataclasses import replace

import pytest

from services.worker.acceptance import accept
from services.worker.engine import EngineInfo, Work
from services.worker.tokenizer import smollm2_tokenizer

INFO = EngineInfo("m", "torch", "float32", "cpu", 2400, 10, 15, 16, 4, 512, 0)
WORK = Work("a", 1, 100, 1, prompt="The sky is", grows=True, prompt_tokens=3)


def test_work_that_grows_begins_with_what_its_prompt_takes() -> None:
    text = accept(WORK, INFO, smollm2_tokenizer(), 0)
    assert (text.blocks, text.may_need_more(16), text.room(16)) == (1, True, 16)
    whole = accept(replace(WORK, reserved_blocks=7), INFO, smollm2_tokenizer(), 0)
    assert not whole.may_need_more(16)


def test_work_that_grows_must_hold_the_tokens_that_it_goes_on_from() -> None:
    resumed = replace(WORK, resume_tokens=(1,) * 20)
    with pytest.raises(ValueError, match="1 are reserved"):
        accept(resumed, INFO, smollm2_tokenizer(), 0)
    assert accept(replace(resumed, reserved_blocks=2), INFO, smollm2_tokenizer(), 0).blocks == 2


def test_a_prompt_longer_than_the_cell_was_told_is_reserved_in_full_or_not_at_all() -> None:
    with pytest.raises(ValueError, match="1 are reserved"):
        accept(replace(WORK, prompt="The sky is blue"), INFO, smollm2_tokenizer(), 0)


def test_work_that_would_outgrow_the_pool_is_refused() -> None:
    with pytest.raises(ValueError, match="the pool has 15"):
        accept(replace(WORK, max_output_tokens=300), INFO, smollm2_tokenizer(), 0)
