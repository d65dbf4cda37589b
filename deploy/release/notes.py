# SPDX-License-Identifier: Apache-2.0
"""The notes of a release are the section of its version in CHANGELOG.md."""

import re
from datetime import UTC, datetime

UNRELEASED = "## Unreleased"


def section(changelog: str, version: str) -> tuple[str, str] | None:
    """Return the date and the text of a version's section; None if there is no such section."""
    found = re.search(
        rf"^## {re.escape(version)} - (\d{{4}}-\d\d-\d\d)\n(.*?)(?=^## |\Z)",
        changelog, flags=re.MULTILINE | re.DOTALL,
    )  # fmt: skip
    return None if found is None else (found[1], found[2].strip())


def unreleased(changelog: str) -> str:
    """Return the text of the section Unreleased."""
    found = re.search(
        rf"^{UNRELEASED}\n(.*?)(?=^## |\Z)", changelog, flags=re.MULTILINE | re.DOTALL
    )
    return "" if found is None else found[1].strip()


def release_notes(changelog: str, version: str, *, epoch: int) -> tuple[str, bool]:
    """Return the notes of a version, and whether its section has a date.

    Without a dated section, the notes are those of Unreleased, with the day of the commit.
    """
    found = section(changelog, version)
    day = datetime.fromtimestamp(epoch, UTC).strftime("%Y-%m-%d")
    date, text = found or (day, unreleased(changelog))
    return f"# CometMQ {version} - {date}\n\n{text}\n", found is not None


def dated(changelog: str, version: str, day: str) -> str:
    """Return the changelog with the section Unreleased as that of a version.

    An empty section Unreleased stays above it.
    """
    if section(changelog, version) is not None:
        raise SystemExit(f"CHANGELOG.md already has a section of {version}")
    if not unreleased(changelog):
        raise SystemExit("CHANGELOG.md: the section Unreleased is empty")
    return changelog.replace(f"{UNRELEASED}\n", f"{UNRELEASED}\n\n## {version} - {day}\n", 1)
