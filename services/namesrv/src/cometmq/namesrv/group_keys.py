# SPDX-License-Identifier: Apache-2.0
"""The keys with which members of broker groups prove their registrations.

`groupKeyFile` names a file whose keys are accepted for every group, or a folder that has a file for
each group, under its brokerName. Reading blocks: use a worker thread.
"""

from pathlib import Path
from typing import Final

from cometmq.ha.proof import KeyFile, Keys
from cometmq.remoting.errors import SettingsError

SETTING: Final = "groupKeyFile"
FILES_MAX: Final = 1_000
"""Maximum number of files in a folder that are read."""


class GroupKeys:
    """The keys by group; without a path, no group has any."""

    def __init__(self, path: str = "", setting: str = SETTING) -> None:
        """Read the files; raise SettingsError if one cannot be used."""
        self._path = Path(path) if path else None
        self._setting = setting
        self._all: KeyFile | None = None
        self._by_name: dict[str, KeyFile] = {}
        if self._path is None:
            return
        if self._path.is_dir():
            self._by_name = {name: self._open(name) for name in self._names()}
        else:
            self._all = KeyFile(self._path, setting)

    def of(self, broker_name: str) -> Keys:
        """Return the keys that are accepted for a group; none if its members need no proof."""
        if self._all is not None:
            return self._all.keys
        file = self._by_name.get(broker_name)
        return () if file is None else file.keys

    def is_for_one(self, broker_name: str) -> bool:
        """Return whether the group has a key file of its own, so that all its brokers sign."""
        return broker_name in self._by_name

    def refresh(self) -> list[str]:
        """Read new and changed files; return an error text for each changed file that cannot be
        used.

        The previous keys of such a file remain in use.
        """
        faults: list[str] = []
        if self._path is None:
            return faults
        by_name: dict[str, KeyFile] = {}
        if self._all is None:
            for name in self._names():
                try:
                    by_name[name] = self._by_name.get(name) or self._open(name)
                except SettingsError:  # half-written: the next round reads it
                    continue
            self._by_name = by_name
        for file in (self._all, *by_name.values()):
            if file is None:
                continue
            try:
                file.refresh()
            except SettingsError as error:
                faults.append(str(error))
        return faults

    def _open(self, name: str) -> KeyFile:
        assert self._path is not None
        return KeyFile(self._path / name, self._setting)

    def _names(self) -> list[str]:
        """Return the groups that have a file. Names with a leading dot are skipped: Kubernetes adds
        such links to a mounted secret.
        """
        assert self._path is not None
        try:
            found = [it.name for it in self._path.iterdir() if not it.name.startswith(".")]
        except OSError:
            return list(self._by_name)
        return sorted(name for name in found if (self._path / name).is_file())[:FILES_MAX]
