# SPDX-License-Identifier: Apache-2.0
"""Freed memory is released whenever a process has grown and no flood lasts."""

from cometmq.runtime.process.memory import FreedMemory


async def test_memory_is_released_after_each_growth() -> None:
    used = [100 << 20]
    released: list[int] = []

    def release() -> None:
        released.append(used[0])
        used[0] -= 10 << 20

    memory = FreedMemory(used_bytes=lambda: used[0], release=release)
    for size, expected in ((116, []), (117, [117]), (123, [117]), (124, [117, 124]), (90, None),
                           (107, [117, 124, 107])):  # fmt: skip
        used[0] = size << 20
        await memory.check()
        assert expected is None or [one >> 20 for one in released] == expected


async def test_memory_is_released_once_a_flood_has_ended() -> None:
    used, floods = [100 << 20], [True]
    memory = FreedMemory(
        lambda: not floods[0],
        used_bytes=lambda: used[0],
        release=lambda: used.append(used.pop() - (60 << 20)),
    )
    used[0] = 180 << 20
    await memory.check()
    assert used[0] >> 20 == 180
    floods[0] = False
    await memory.check()
    assert used[0] >> 20 == 120
