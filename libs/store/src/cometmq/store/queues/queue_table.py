# SPDX-License-Identifier: Apache-2.0
"""All consume queues of a store, by topic and queue id.

Only a stored message creates a queue; a lookup never does, so arbitrary pulls cannot make memory
grow.
"""

from collections.abc import Callable, Iterator

from cometmq.remoting.names import SCHEDULE_TOPIC
from cometmq.store.delay_levels import UNKNOWN_LEVEL_DELAY_MS, DelayLevels
from cometmq.store.disk import Disk
from cometmq.store.errors import CorruptStore
from cometmq.store.layout import FOREIGN, Layout, is_file_name, is_topic
from cometmq.store.queues.consume_queue import ConsumeQueue
from cometmq.store.queues.floors import Floor, Floors
from cometmq.store.queues.queue_files import QueueFiles
from cometmq.store.settings import CQ_ENTRY_BYTES, StoreSettings


def queue_folders(disk: Disk, root: str, ignored: list[str]) -> Iterator[tuple[str, int, str]]:
    """Yield topic, queue id and path of each queue's folder below `root`; append the paths of what
    is no queue to `ignored`.
    """
    for topic in disk.names(root):
        folder = f"{root}/{topic}"
        if topic.startswith(FOREIGN) or not disk.is_folder(folder):
            ignored.append(folder)
            continue
        for name in disk.names(folder):
            path = f"{folder}/{name}"
            if is_file_name(name, len(name)) and disk.is_folder(path):
                yield topic, int(name), path
            else:
                ignored.append(path)


class QueueTable:
    """Finds, creates and removes the consume queues of a store."""

    __slots__ = (
        "_delays",
        "_disk",
        "_file_size",
        "_layout",
        "counts",
        "floors",
        "nowhere",
        "queues",
    )

    def __init__(self, disk: Disk, layout: Layout, settings: StoreSettings) -> None:
        self._disk = disk
        self._layout = layout
        self._delays = DelayLevels.parse(settings.message_delay_level)
        size = settings.mapped_file_size_consume_queue
        self._file_size = -(-size // CQ_ENTRY_BYTES) * CQ_ENTRY_BYTES
        self.queues: dict[tuple[str, int], ConsumeQueue] = {}
        self.nowhere = ConsumeQueue("", -1, self._files(""))
        """A placeholder for the queue of records that are in no queue; never gets an entry."""
        self.floors = Floors()
        self.counts: dict[str, int] = {}
        """The highest queue id of each topic, plus one."""

    def _files(self, folder: str) -> QueueFiles:
        return QueueFiles(self._disk, folder, self._file_size, self._layout.temporary)

    def load(self, on_corrupt: Callable[[CorruptStore], None] | None = None) -> list[str]:
        """Find the queues in the store's folder; recovery determines their ends. Return the paths
        that were ignored.

        Raise CorruptStore for invalid files, or pass the error to `on_corrupt` and continue.
        """
        ignored: list[str] = []
        root = self._layout.consume_queue
        for topic, queue_id, _ in queue_folders(self._disk, root, ignored):
            try:
                ignored += self.create(topic, queue_id).files.load()
            except CorruptStore as error:
                if on_corrupt is None:
                    raise
                on_corrupt(error)
        return ignored

    @property
    def delayed(self) -> tuple[str, tuple[int, ...], int]:
        """The topic of delayed messages, its queues' delays, and the delay of unknown levels."""
        return SCHEDULE_TOPIC, self._delays.delays_ms, UNKNOWN_LEVEL_DELAY_MS

    def get(self, topic: str, queue_id: int) -> ConsumeQueue | None:
        """Return a queue; None if it has never held a message."""
        return self.queues.get((topic, queue_id))

    def create(self, topic: str, queue_id: int) -> ConsumeQueue:
        """Create a queue in memory; its files are created with its first entries.

        Raise ValueError for a topic that cannot name a folder.
        """
        if not is_topic(topic):
            raise ValueError(f"a topic cannot be named {topic!r}")
        folder = self._layout.queue_folder(topic, queue_id)
        files = self._files(folder)
        delay_ms = self._delays.delay_ms(queue_id + 1) if topic == SCHEDULE_TOPIC else None
        queue = ConsumeQueue(topic, queue_id, files, delay_ms)
        queue.floors = self.floors.of(topic, queue_id)
        self.queues[topic, queue_id] = queue
        self.counts[topic] = max(queue_id + 1, self.counts.get(topic, 0))
        return queue

    def trim(self, topic: str, queue_id: int, floor: Floor) -> None:
        """Delete the messages of a queue before a floor, whose mark readers may see."""
        self.floors.add(topic, queue_id, floor)
        queue = self.queues.get((topic, queue_id))
        if queue is not None:
            queue.floors = self.floors.of(topic, queue_id)
            queue.raise_to(floor)

    def of_topic(self, topic: str) -> Iterator[ConsumeQueue]:
        """Yield the queues of one topic."""
        return (queue for (name, _), queue in self.queues.items() if name == topic)

    def remove_topic(self, topic: str) -> list[str]:
        """Drop a topic's queues; return the folders to delete."""
        self.counts.pop(topic, None)
        for key in [key for key in self.queues if key[0] == topic]:
            for file in self.queues.pop(key).files.files:
                file.close()
        return [f"{self._layout.consume_queue}/{topic}"]
