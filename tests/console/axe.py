# SPDX-License-Identifier: Apache-2.0
"""axe-core, which finds what keeps people from using a page."""

from cometmq.peers.java.maven import cache_entry, program
from cometmq.peers.processes import run_to_end

VERSION = "4.14.1"
INSTALL_TIMEOUT_S = 300


def source():
    """Return axe-core's script from the npm registry; it is fetched on first use."""
    with cache_entry(f"axe-core-{VERSION}") as (folder, complete):
        if not complete:
            options = ["--no-package-lock", "--ignore-scripts", "--no-audit"]
            install = [program("npm"), "install", *options, f"axe-core@{VERSION}"]
            run_to_end(install, timeout_s=INSTALL_TIMEOUT_S, cwd=folder)
    return (folder / "node_modules/axe-core/axe.min.js").read_text(encoding="utf-8")
