# SPDX-License-Identifier: Apache-2.0
"""The file that keeps the scrubber's position and the known damage across restarts.

If the file is missing or damaged, the scrubber starts over and finds the same damage, apart from
records that were damaged before they had a checksum.
"""

import msgspec

from cometmq.remoting.errors import UNREADABLE_JSON
from cometmq.store.disk import Disk
from cometmq.store.errors import DiskError
from cometmq.store.layout import Layout
from cometmq.store.log.damage import DamagedRange


class ScrubState(msgspec.Struct, frozen=True, rename="camel"):
    """The scrubber's current round, and the damaged ranges of the log."""

    offset: int = 0
    round_end: int = 0
    round_began_ms: int = 0
    damage: tuple[DamagedRange, ...] = ()
    records: tuple[DamagedRange, ...] = ()
    """The part of the damage that was found without checksums. Checksums that are computed later
    match the damaged bytes, so they cannot detect it again.
    """


def load_state(disk: Disk, layout: Layout) -> ScrubState:
    """Return the state of the last run, or a new one if there is no readable state."""
    path = layout.scrub
    try:
        if not disk.exists(path):
            return ScrubState()
        file = disk.open(path)
        return msgspec.json.decode(file.read(0, file.size()), type=ScrubState)
    except (DiskError, *UNREADABLE_JSON):
        return ScrubState()


def save_state(disk: Disk, layout: Layout, state: ScrubState) -> None:
    """Replace the file durably; blocks."""
    data = msgspec.json.encode(state)
    prepared = layout.temporary(layout.scrub)
    file = disk.create(prepared, len(data), temporary=f"{prepared}.empty.new")
    file.write(0, [data])
    file.sync()
    file.close()
    disk.rename(prepared, layout.scrub)
    disk.sync_folder(layout.checksums)
