"""The one-shot engines of `headway worker`, made of its options."""

from collections.abc import Callable
from dataclasses import replace

from schemas.profile import MINILM_L6
from services.worker.engine import Engine
from services.worker.oneshot_engines import SimulatedOneShot, minilm, simulated

MINILM = "minilm"
SIMULATED = "simulated-oneshot"
ONESHOT = (MINILM, SIMULATED)


def oneshot_loader(model: str, options: dict[str, object]) -> Callable[[], Engine]:
    """Return what makes the engine that the options of `headway worker` ask for."""
    max_batch, pool_bytes = options["max_batch"], options["kv_pool_bytes"]
    threads, pass_ms = options["threads"], options["pass_ms"]
    assert isinstance(max_batch, int)  # noqa: S101 - click has checked it
    assert isinstance(pool_bytes, int)  # noqa: S101 - as above
    assert isinstance(pass_ms, float)  # noqa: S101 - as above

    def encoder() -> Engine:
        return minilm(
            model=model,
            pool_bytes=pool_bytes,
            max_batch=max_batch,
            threads=threads if isinstance(threads, int) else None,
        )

    def made_up() -> Engine:
        config = SimulatedOneShot(model=model, max_batch=max_batch, pool_bytes=pool_bytes)
        context = MINILM_L6.max_sequence_tokens
        return simulated(
            replace(config, pass_us=round(pass_ms * 1000), max_sequence_tokens=context)
        )

    return encoder if options["engine"] == MINILM else made_up
