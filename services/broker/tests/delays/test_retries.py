# SPDX-License-Identifier: Apache-2.0

import pytest

from cometmq.broker.delays.retries import Fate, consume_count_max, fate, retry_level
from cometmq.remoting.versions import V3_4_9, V4_9_4


@pytest.mark.parametrize(
    ("reconsume_times", "count_max", "delay_level", "expected"),
    [
        (0, 16, 0, Fate.RETRY),
        (15, 16, 0, Fate.RETRY),
        (16, 16, 0, Fate.DEAD),
        (17, 16, 3, Fate.DEAD),
        (0, 16, -1, Fate.DEAD),
        (0, 0, 0, Fate.DEAD),
    ],
)
def test_fate(reconsume_times: int, count_max: int, delay_level: int, expected: Fate) -> None:
    assert fate(reconsume_times, count_max, delay_level) is expected


def test_the_client_may_set_the_count_since_3_4_9() -> None:
    assert consume_count_max(16, 3, version=V4_9_4) == 3
    assert consume_count_max(16, 3, version=V3_4_9) == 3
    assert consume_count_max(16, 3, version=V3_4_9 - 1) == 16
    assert consume_count_max(16, None, version=V4_9_4) == 16


def test_each_retry_is_delayed_a_level_more() -> None:
    assert [retry_level(0, times) for times in range(3)] == [3, 4, 5]
    assert retry_level(1, 7) == 1
