# SPDX-License-Identifier: Apache-2.0
"""Restores one topic: sends its messages, compares them, and commits the offsets of groups."""

import hashlib
from collections.abc import Sequence
from pathlib import Path
from time import monotonic
from typing import NamedTuple

from cometmq.cli.admin import CommandAdmin
from cometmq.cli.archives import progress as progresses
from cometmq.cli.archives.form import Folder
from cometmq.cli.archives.groups import move_groups
from cometmq.cli.archives.places import TopicPlace
from cometmq.cli.archives.progress import Head, Progress
from cometmq.cli.archives.proof import Proof
from cometmq.cli.archives.sending import Sending
from cometmq.cli.meter import live
from cometmq.cli.meter import rate as shown_rate
from cometmq.cli.output import Cell, print_notes
from cometmq.client import Producer
from cometmq.client.errors import InvalidArgument
from cometmq.insight.words import counted


class Manner(NamedTuple):
    """Options that apply to all topics of a restore."""

    rate: float | None
    """Messages per second."""
    patience_s: float
    has_proof: bool
    """Whether everything is read back and compared."""
    has_groups: bool
    """Whether the saved offsets of groups are committed."""


class Work:
    """The restore of one topic, which continues where an earlier run ended."""

    def __init__(
        self,
        backup: Folder,
        place: TopicPlace,
        file: Path | None,
        cluster: Sequence[str],
        *,
        is_again: bool,
    ) -> None:
        self.backup = Folder(
            backup.path,
            backup.plan,
            [it for it in backup.segments if it.topic == place.source],
            backup.end,
        )
        self.place = place
        self._path = file or _default_path(backup, place, cluster)
        self._files = {it.file for it in self.backup.segments}
        self._is_again = is_again
        self._found = self._earlier()

    @property
    def message_count(self) -> int:
        """Number of messages of the topic in the backup."""
        return self.backup.message_count

    @property
    def group_offset_count(self) -> int:
        """Number of saved offsets of groups in the topic."""
        return sum(it.topic == self.place.source for it in self.backup.plan.offsets)

    @property
    def done_count(self) -> int:
        """Number of messages that earlier runs have restored."""
        return 0 if self._progress is None else self._progress.stored_count

    @property
    def done_text(self) -> str:
        """A sentence for a topic that was restored completely before; empty for any other."""
        if self._progress is None or not self._progress.is_done:
            return ""
        return (
            f"{self.place.source} was restored to {self.place.topic} before ({self._path}); to"
            " store its messages once more: --again"
        )

    @property
    def _progress(self) -> Progress | None:
        """The progress of the run to continue; None if the restore begins."""
        is_ignored = self._is_again and self._found is not None and self._found.is_done
        return None if is_ignored else self._found

    def _earlier(self) -> Progress | None:
        found = progresses.load(self._path, self._files)
        own = self.backup.plan.id, self.place.topic
        if found is not None and (found.head.backup, found.head.topic) != own:
            raise InvalidArgument(
                f"{self._path} belongs to another restore: name another file with --progress"
            )
        return found

    def begin_again(self) -> None:
        """Empty the progress file of a complete restore, if the user wants it repeated."""
        if self._found is not None and self._progress is None:
            with progresses.claim(self._path, self._found.size):
                progresses.forget(self._path)
            self._found = None

    async def run(self, admin: CommandAdmin, producer: Producer, manner: Manner) -> list[Cell]:
        """Restore the topic; return its row in the table of results."""
        with progresses.claim(self._path, 0 if self._found is None else self._found.size):
            return await self._run(admin, producer, manner)

    async def _run(self, admin: CommandAdmin, producer: Producer, manner: Manner) -> list[Cell]:
        progress = self._progress
        if progress is None:
            targets = await self.place.targets(admin, producer, manner.patience_s)
            head = Head(backup=self.backup.plan.id, topic=self.place.topic, targets=targets)
            progress = progresses.begin(self._path, head, self._files)
        try:
            await self._send(admin, producer, progress, manner)
        except BaseException:
            count = counted(progress.stored_count, "message")
            how = " without --again" if self._is_again else ""
            text = f"{count} of {self.place.source} restored; repeat the command{how} to go on"
            print_notes([text])
            raise
        proof = Proof(admin, self.backup, progress)
        if manner.has_proof:
            async with live(lambda: f"{proof.checked_count:,} messages compared"):
                await proof.run()
            print_notes(proof.differences)
        moved = await move_groups(admin, self.backup, progress) if manner.has_groups else 0
        if not proof.differing_count:
            progress.finish()
        proven = [proof.checked_count, proof.differing_count] if manner.has_proof else [None, None]
        counts = [self.message_count, progress.stored_count, progress.left_out_count]
        return [self.place.source, self.place.topic, *counts, *proven, moved]

    async def _send(
        self, admin: CommandAdmin, producer: Producer, progress: Progress, manner: Manner
    ) -> None:
        before, begin = progress.stored_count, monotonic()
        sending = Sending(
            admin, producer, self.backup, progress, rate=manner.rate,
            patience_s=manner.patience_s, left_out=_print_left_out,
        )  # fmt: skip

        def shown() -> str:
            percent = 100 * progress.stored_count / (self.message_count or 1)
            return f"{percent:.0f} %: {shown_rate(progress.stored_count - before, begin)}"

        async with live(shown):
            await sending.run()
        if sending.repeated_count:
            count = counted(sending.repeated_count, "message")
            text = f"{count} may be stored twice, with the same ids: a broker had not answered"
            print_notes([text])


def _default_path(backup: Folder, place: TopicPlace, cluster: Sequence[str]) -> Path:
    """Return the default path of the progress file, which depends on the topic and the cluster."""
    text = "\n".join([place.source, place.topic, *sorted(cluster)])
    return backup.path / f"restore-{hashlib.sha256(text.encode()).hexdigest()[:12]}.jsonl"


def _print_left_out(message_id: str, reason: str) -> None:
    print_notes([f"{message_id}: left out, {reason}"])
