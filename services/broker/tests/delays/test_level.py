# SPDX-License-Identifier: Apache-2.0
import pytest

from cometmq.broker.delays.level import Level


@pytest.mark.parametrize(
    ("first", "offset", "marks", "ahead"),
    [
        (9, 9, [], {10: (20, 500)}),
        (10, 20, [(500, 20)], {}),
        (15, 20, [(500, 20)], {}),
        (20, 20, [], {}),
    ],
)
def test_a_finished_run_that_retention_has_cut_is_not_delivered_again(
    first: int, offset: int, marks: list[tuple[int, int]], ahead: dict[int, tuple[int, int]]
) -> None:
    level = Level(1, 5)
    level.finish(10, 20, 500)

    assert not level.fit(first, 30)

    assert (level.offset, list(level.marks), level.ahead) == (offset, marks, ahead)
