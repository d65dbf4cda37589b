# SPDX-License-Identifier: Apache-2.0
"""Derives the plan of a run from its seed: the group, its environment, and the kinds of faults.

Each run has only some kinds of faults. This finds rare combinations sooner than using all kinds at
once, because most faults prevent others.
"""

from collections.abc import Mapping
from random import Random
from typing import Any, Final

import msgspec

from cometmq.ha.fencing import Timing
from cometmq.store.settings import FlushDiskType

FAULTS: Final[Mapping[str, float]] = {
    "kill": 3,
    "crash": 2,
    "freeze": 2,
    "isolate": 3,
    "one_way": 2,
    "part": 2,
    "exile": 2,
    "cut": 2,
    "hide_record": 2,
    "lose_answers": 2,
    "slow_record": 1,
    "slow_disk": 1,
    "bad_disk": 1,
    "full_disk": 1,
    "slow_loop": 1,
    "jump": 1,
    "switch_over": 3,
    "elect": 4,
    "fence": 1,
    "repeat_order": 1,
    "stop_elector": 1,
    "resize": 1,
    "delete": 1,
    "empty_store": 1,
}
"""Kind of fault (a method of `faults.Nemesis`) -> its relative frequency in runs that have it."""
RARE: Final = {"delete": 0.08, "resize": 0.15, "bad_disk": 0.3, "fence": 0.3}
"""Kinds of faults that only few runs have, with their probability."""
NOT_DRAWN: Final = frozenset({"empty_store"})
"""Kinds that are only for tests of a dropped rule."""
FAULT_FREE_CHANCE: Final = 0.02

KEY_CHANCE: Final = 0.8
"""The share of groups with a key."""

FAST: Final = Timing(
    renew_deadline_ms=1_200, lease_duration_ms=1_561, heard_within_ms=400, lag_timeout_ms=1_500
)


class Plan(msgspec.Struct, kw_only=True):
    """Everything that the seed of a run decides."""

    copies: int
    min_in_sync: int = 1
    timing: Timing = FAST
    faults: tuple[str, ...] = ()
    weights: dict[str, float] = {}
    """Overrides of the frequencies in `FAULTS`."""
    chaos_s: float = 4.0
    """Duration of the phase with faults."""
    pause_s: float = 0.3
    """Mean time between two faults."""
    clients: int = 2
    think_s: float = 0.12
    """Mean pause of a client between two requests."""
    is_early: bool = False
    """Whether faults begin at once instead of after the group has formed."""
    electors: int = 1
    clock_drift: float = 0.0
    """Largest relative difference between a clock's rate and the world's; at most 5 %."""
    is_sync_flush: bool = False
    delay_s: float = 0.002
    late_chance: float = 0.0
    twice_chance: float = 0.0
    unknown_chance: float = 0.0
    """Share of the brokers' record writes that go unanswered, during the whole run."""
    lands_chance: float = 0.3
    """The share of unanswered writes that take effect at once."""
    slice_bytes: int = 256 << 10
    """Bytes of the log that a master sends in one turn."""
    kills_several: bool = False
    """Half of the kills kill several brokers at once."""
    only_fills_disks: bool = False
    """Whether a bad disk is merely full, and only for the group's small files."""
    send_share: float = 0.8
    """Share of sends among all requests; changes to tables bring the sum up to 0.88."""
    transfer_bytes_s: int = 0
    """Rate at which a master sends its log to a follower; 0 is unlimited."""
    has_key: bool = True
    """Whether the brokers prove to each other that they know the group's key."""
    chaos_bytes_s: int = 0
    """A lower rate for the phase with faults; 0 keeps `transfer_bytes_s`."""

    def settings(self) -> dict[str, Any]:
        timing = self.timing
        return {
            "min_in_sync": self.min_in_sync,
            "renew_deadline_mills": timing.renew_deadline_ms,
            "heard_within_mills": timing.heard_within_ms,
            "replica_lag_timeout_mills": timing.lag_timeout_ms,
            "switchover_timeout_mills": 500,
            "max_ha_transfer_byte_in_second": self.transfer_bytes_s,
            "flush_disk_type": (
                FlushDiskType.SYNC_FLUSH if self.is_sync_flush else FlushDiskType.ASYNC_FLUSH
            ),
        }


def draw(random: Random) -> Plan:
    """Draw the plan of a run."""
    plan = draw_usual(random)
    return msgspec.structs.replace(plan, has_key=random.random() < KEY_CHANCE)


def draw_usual(random: Random) -> Plan:
    """Return a plan of a group with a key."""
    copies = random.choice((2, 2, 3, 3, 3, 4, 5))
    least = random.choice((1, 1, 2))
    share = random.choice((0.2, 0.4, 0.7))
    kinds = [kind for kind in FAULTS if kind not in NOT_DRAWN]
    chosen = [kind for kind in kinds if random.random() < RARE.get(kind, 1.0) * share]
    if random.random() < FAULT_FREE_CHANCE:
        chosen = []
    is_rough = bool(chosen) and random.random() < 0.5
    return Plan(
        copies=copies,
        min_in_sync=least,
        faults=tuple(chosen),
        chaos_s=random.choice((1.5, 2.5, 4.0)),
        pause_s=random.choice((0.06, 0.12, 0.3)),
        clients=random.choice((1, 2, 3)),
        is_early=bool(chosen) and random.random() < 0.15,
        electors=random.choice((1, 1, 2)),
        clock_drift=random.choice((0.0, 0.05)),
        is_sync_flush=random.random() < 0.3,
        delay_s=random.choice((0.001, 0.005, 0.03)),
        late_chance=random.choice((0.01, 0.05)) if is_rough else 0.0,
        twice_chance=random.choice((0.0, 0.05)) if is_rough else 0.0,
        slice_bytes=random.choice((256 << 10, 256 << 10, 300)),
        transfer_bytes_s=random.choice((0, 0, 0, 20_000)),
        kills_several=copies > 2 and random.random() < 0.3,
        send_share=random.choice((0.8, 0.8, 0.3)),
        only_fills_disks=random.random() < 0.5,
    )
