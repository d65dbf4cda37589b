# SPDX-License-Identifier: Apache-2.0
"""The packages of an image are exactly those that its wheels need, with the hashes of the lock."""

from locking import locked, needed
from packaging.requirements import Requirement

LOCK = """\
alpha==1.0 \\
    --hash=sha256:aa \\
    --hash=sha256:bb
    # via beta
beta==2.0 ; sys_platform == 'win32' \\
    --hash=sha256:cc
gamma==3.0 ; python_full_version >= '3.0' \\
    --hash=sha256:dd
"""
REQUIRES = {
    "suite": [Requirement("lib==1"), Requirement('control==1; extra == "ha"')],
    "lib": [Requirement("alpha"), Requirement('tests; extra == "dev"')],
    "control": [Requirement("suite"), Requirement("gamma[fast]")],
    "alpha": [],
    "gamma": [Requirement('speed; extra == "fast"')],
}


def test_entries_for_other_platforms_are_left_out():
    entries = locked(LOCK)
    assert set(entries) == {"alpha", "gamma"}
    assert entries["alpha"].split() == [
        "alpha==1.0", "\\", "--hash=sha256:aa", "\\", "--hash=sha256:bb",
    ]  # fmt: skip


def test_requirements_are_followed_with_their_extras():
    assert needed(["suite"], REQUIRES) == ({"suite", "lib", "alpha"}, set())
    known, unknown = needed(["suite[ha]"], REQUIRES)
    assert known == {"suite", "lib", "alpha", "control", "gamma"}
    assert unknown == {"speed"}
