# SPDX-License-Identifier: Apache-2.0
"""The files of one release, for all tests that install or read them."""

import fcntl
import os

import pytest
from tests.packages.releases import PLATFORM, is_complete, make_release


@pytest.fixture(scope="session")
def files(tmp_path_factory):
    """Make the release of this machine's platform, once for all workers."""
    folder = tmp_path_factory.getbasetemp()
    if "PYTEST_XDIST_WORKER" in os.environ:  # noqa: TID251  # of this run
        folder = folder.parent
    out = folder / "release" / "files"
    out.parent.mkdir(exist_ok=True)
    with (folder / "release.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not is_complete(out):
            make_release(out, PLATFORM)
    return out
