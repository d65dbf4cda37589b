# SPDX-License-Identifier: Apache-2.0
from hypothesis import given
from hypothesis import strategies as st

from cometmq.broker.copies.streams.served import BURST_MS, RateLimit


def test_no_limit_never_waits() -> None:
    rate = RateLimit()
    rate.spend(1 << 40)
    assert rate.wait_ms(0, 0) == 0


@given(
    st.integers(1_000, 10_000_000),
    st.lists(st.tuples(st.integers(1, 300_000), st.integers(0, 50)), max_size=50),
)
def test_no_more_is_sent_than_the_rate_allows(
    bytes_per_s: int, sends: list[tuple[int, int]]
) -> None:
    rate, now_ms, sent, largest = RateLimit(), 0, 0, 0
    for size, pause_ms in sends:
        now_ms += pause_ms
        wait_ms = rate.wait_ms(now_ms, bytes_per_s)
        if wait_ms:
            now_ms += wait_ms
            assert rate.wait_ms(now_ms, bytes_per_s) == 0
        rate.spend(size)
        sent += size
        largest = max(largest, size)
    assert sent <= bytes_per_s * (now_ms + BURST_MS) / 1000 + largest + 1
