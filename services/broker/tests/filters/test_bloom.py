# SPDX-License-Identifier: Apache-2.0

import pytest

from cometmq.broker.filters.bloom import bloom_places


@pytest.mark.parametrize(
    ("error_percent", "expected_count", "text", "bit_num", "places"),
    [
        (20, 32, "G#T", 112, (24, 26, 83)),
        (20, 32, "group-a#topic-b", 112, (34, 94, 101)),
        (20, 32, "CID_x#中文-topic", 112, (38, 98, 11)),
        (20, 32, "", 112, (0, 0, 0)),
        (20, 32, "0123456789abcdef", 112, (11, 47, 60)),
        (20, 32, "0123456789abcdefg#t", 112, (18, 55, 51)),
        (20, 32, "please_rename_unique_group_name_4#TopicTest", 112, (63, 14, 51)),
        (10, 128, "G#T", 616, (192, 82, 27, 174)),
        (5, 64, "group-a#topic-b", 400, (50, 350, 245, 345, 354)),
        (50, 10, "a", 16, (14,)),
    ],
)
def test_places(
    error_percent: int, expected_count: int, text: str, bit_num: int, places: tuple[int, ...]
) -> None:
    found = bloom_places(text, error_percent=error_percent, expected_count=expected_count)
    assert (found.bit_num, found.bit_pos) == (bit_num, places)
