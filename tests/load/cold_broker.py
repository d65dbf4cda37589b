# SPDX-License-Identifier: Apache-2.0
"""`cold_broker FILE`: a broker with a slow disk and none of its data in memory."""

import sys
import time
from typing import Final
from unittest.mock import patch

from cometmq.cli.main import main
from cometmq.store.os_disk import OsFile

READ_S: Final = 0.004

read = OsFile.read


def slow_read(file: OsFile, offset: int, count: int) -> bytes:
    time.sleep(READ_S)
    return read(file, offset, count)


def not_cached(_file: OsFile, _offset: int, _count: int) -> None:
    return None


if __name__ == "__main__":
    sys.argv[1:] = ["broker", "-c", sys.argv[1]]
    with patch.object(OsFile, "read", slow_read), patch.object(OsFile, "read_cached", not_cached):
        main()
