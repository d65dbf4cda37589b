# SPDX-License-Identifier: Apache-2.0
"""Decides where the log ends, and whether messages are missing or damaged there."""

from enum import StrEnum

from cometmq.remoting.message.record import Scan
from cometmq.store.errors import CorruptStore
from cometmq.store.log.log_scanner import LogScanner, find_record, follow_headers
from cometmq.store.parts import Parts
from cometmq.store.recovery.start import LastRun


class StopVerdict(StrEnum):
    """The decision at the first offset in the log without a valid record."""

    END = "end"  # nothing follows: the log ends here
    MISSING = "missing"  # nothing follows, but more was synced: messages are missing
    TRUNCATE = "truncate"  # the rest was never synced: the log ends here
    REFUSE = "refuse"  # the rest was synced: an operator must examine the damage


def judge_stop(
    *, stop: int, safe_offset: int, safe_timestamp: int, follows: Scan | None
) -> StopVerdict:
    """Decide whether the log ends at `stop`, where no valid record begins.

     a whole record follows | it was certainly on the disk | verdict |
    ---|---|---|
     no | no | END |
     no | yes | MISSING |
     yes | no: it is past the safe offset, and was not stored before the safe time | TRUNCATE |
     yes | yes | REFUSE |
    """
    if follows is None:
        return StopVerdict.MISSING if stop < safe_offset else StopVerdict.END
    if stop < safe_offset or follows.store_timestamp < safe_timestamp:
        return StopVerdict.REFUSE
    return StopVerdict.TRUNCATE


class LogEnd:
    """Compares the end of the log with what the last run has synced."""

    def __init__(self, parts: Parts, last_run: LastRun, *, has_copies: bool) -> None:
        """`has_copies` means that other brokers have the messages that this log may lack."""
        self._layout = parts.layout
        self._log = parts.log
        self._commit_log = parts.commit_log
        self._files = parts.commit_log.files
        self._check_crc = parts.settings.check_crc_on_recover
        self._checkpoint, self._progress, self._was_clean = last_run
        self._has_copies = has_copies
        self.has_cut_records = False
        """Whether whole records are missing from the end; an incomplete last record does not
        count.
        """

    def refuse_damage(self, start: int) -> None:
        """Raise CorruptStore for damage from `start` on that was synced, before anything is
        truncated: manual repairs need the queue entries.
        """
        scanner = LogScanner(self._files, start, check_crc=self._check_crc)
        for _ in scanner:
            pass
        self._judge(scanner.offset)

    def check_files(self) -> None:
        """Raise CorruptStore if the last files of the log do not exist, or if the last one is an
        older version from a backup, which ends early.
        """
        progress, files = self._progress, self._files
        if progress is None:
            return
        end = files.end if files.files else 0
        if self._was_clean and files.files and files.first <= progress.offset <= end:
            end = follow_headers(files, max(progress.verify_offset, files.first), progress.offset)
            if end == progress.offset or files.has_data_from(end):
                return  # whole, or damaged: readers leave damage out
        if end < progress.offset:
            self._note_missing(end, progress.offset)

    def _note_missing(self, end: int, synced_end: int) -> None:
        """Report synced messages that are missing from the end of the log; raise CorruptStore if
        no other broker has them.
        """
        if not self._has_copies:
            layout = self._layout
            raise CorruptStore(
                f"{layout.commit_log}: the log ends at {end}, but messages up to {synced_end} were"
                " synced: put the missing files back (is the volume mounted?), or, to start without"
                f" these messages, remove {layout.progress}"
            )
        if not self.has_cut_records:
            self.has_cut_records = True
            self._log.error("log.shortened", end=end, synced_end=synced_end)

    def settle(self, end: int) -> None:
        """Set the end of the log after checking the bytes beyond it."""
        files = self._files
        if not files.files:
            self._commit_log.set_end(end)
            return
        if self._was_clean and not files.has_data_from(end):
            files.pad_last()
            self._commit_log.set_end(end)
            return
        self._judge(end)
        if files.pad_last():
            self._log.warning("file.padded", path=files.files[-1].path, size=files.file_size)
        self._commit_log.truncate(end)

    def _judge(self, stop: int) -> None:
        # A blank tail and a torn last record are normal. A whole record after them means that
        # the disk lost bytes in between, or wrote later ones first.
        follows = find_record(self._files, stop + 1)
        progress = self._progress
        verdict = judge_stop(
            stop=stop,
            safe_offset=progress.offset if progress is not None else 0,
            safe_timestamp=self._checkpoint.log_timestamp if progress is None else 0,
            follows=follows,
        )
        if follows is None:
            if verdict is StopVerdict.MISSING and progress is not None:
                self._note_missing(stop, progress.offset)
            elif self._files.has_data_from(stop):  # a torn record, or a damaged last one
                self._log.warning("log.truncated", physical_offset=stop, discarded_from=stop)
            return
        if verdict is StopVerdict.REFUSE:
            path = self._files.file_at(stop).path
            position = (stop - self._files.first) % self._files.file_size
            raise CorruptStore(
                f"{path}: damaged at byte {position} (physical offset {stop}), but whole records"
                f" follow at {follows.physical_offset}; run `cometmq store verify`"
            )
        self.has_cut_records = True
        self._log.warning(
            "log.truncated", physical_offset=stop, discarded_from=follows.physical_offset
        )
