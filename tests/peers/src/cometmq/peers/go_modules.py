# SPDX-License-Identifier: Apache-2.0
"""Downloads the Go modules whose files tests read, once, into Go's own cache."""

import json
import subprocess
from pathlib import Path
from typing import Final, NamedTuple

from cometmq.peers.errors import PeerError

TIMEOUT_S: Final = 600


class GoModule(NamedTuple):
    """A version of a module; `checksum` is that of its content, as in go.sum."""

    path: str
    version: str
    checksum: str

    def folder(self) -> Path:
        """Return the folder of the module's files; raise PeerError if they are not as expected."""
        command = ["go", "mod", "download", "-json", f"{self.path}@{self.version}"]
        try:
            done = subprocess.run(
                command, capture_output=True, text=True, timeout=TIMEOUT_S, check=False
            )
        except FileNotFoundError:
            raise PeerError("go is not installed: tests read files of Go modules") from None
        if done.returncode:
            raise PeerError(f"{' '.join(command)}: {done.stdout}{done.stderr}")
        found = json.loads(done.stdout)
        if found["Sum"] != self.checksum:
            raise PeerError(f"{self.path} {self.version} has the checksum {found['Sum']}")
        return Path(found["Dir"])


KEDA: Final = GoModule(
    "github.com/kedacore/keda/v2", "v2.20.2", "h1:SR60v8uIcelbveS8n/1jcl8tLdBBIbHMxmdOHw8tKqA="
)
