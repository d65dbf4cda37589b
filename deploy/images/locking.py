# SPDX-License-Identifier: Apache-2.0
"""Selects, from a lock with hashes, the packages that given wheels need."""

import re
import zipfile
from collections.abc import Iterable, Mapping
from email.parser import HeaderParser
from pathlib import Path

from packaging.metadata import Metadata
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name


def metadata_of(wheel: Path) -> Metadata:
    """Return the metadata of a wheel."""
    with zipfile.ZipFile(wheel) as archive:
        (name,) = [
            one for one in archive.namelist() if re.fullmatch(r"[^/]+\.dist-info/METADATA", one)
        ]
        text = archive.read(name).decode()
    fields = HeaderParser().parsestr(text)
    return Metadata.from_email(fields.as_string(), validate=False)


def locked(text: str) -> dict[str, str]:
    """Return the entries of a lock that apply to this Python, keyed by package name."""
    entries: dict[str, str] = {}
    for block in re.split(r"\n(?=\S)", text):
        lines = [line for line in block.splitlines() if not line.strip().startswith("#")]
        if not lines or "==" not in lines[0]:
            continue
        requirement = Requirement(lines[0].rstrip("\\ "))
        if requirement.marker is None or requirement.marker.evaluate():
            entries[canonicalize_name(requirement.name)] = "\n".join(lines).rstrip("\\ \n")
    return entries


def needed(
    names: Iterable[str], requires: Mapping[str, Iterable[Requirement]]
) -> tuple[set[str], set[str]]:
    """Return the known and the unknown packages reachable from `names`, such as `cometmq[ha]`.

    `requires` maps each known package to its requirements, which are followed.
    """
    known: set[str] = set()
    unknown: set[str] = set()
    seen: set[tuple[str, str]] = set()
    waiting = [(Requirement(name).name, extra) for name in names for extra in _extras(name)]
    while waiting:
        name, extra = waiting.pop()
        name = canonicalize_name(name)
        if (name, extra) in seen:
            continue
        seen.add((name, extra))
        if name not in requires:
            unknown.add(name)
            continue
        known.add(name)
        for one in requires[name]:
            if one.marker is None or one.marker.evaluate({"extra": extra}):
                waiting += [(one.name, inner) for inner in ("", *one.extras)]
    return known, unknown


def _extras(name: str) -> tuple[str, ...]:
    return ("", *Requirement(name).extras)
