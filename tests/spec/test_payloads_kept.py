"""What is kept in memory of prompts follows the policy while the owner runs."""

from streams.payloads import Payloads


def kept(payloads: Payloads[bytes]) -> list[int]:
    return sorted(payloads._kept)  # pyright: ignore[reportPrivateUsage] - what is not kept would be asked of a broker


async def test_a_smaller_cache_lets_the_oldest_go_at_once_and_a_larger_one_keeps_more() -> None:
    payloads: Payloads[bytes] = Payloads(
        "nowhere:1", "t", 0, bytes_max=100, parse=lambda record: record.value
    )
    for offset in range(10):
        payloads.keep(offset, b"x" * 10, 10)
    payloads.resize(30)
    assert kept(payloads) == [7, 8, 9]
    payloads.resize(50)
    for offset in range(10, 20):
        payloads.keep(offset, b"x" * 10, 10)
    assert kept(payloads) == [15, 16, 17, 18, 19]
    assert await payloads.get(19) == b"x" * 10
    await payloads.close()
