# SPDX-License-Identifier: Apache-2.0
"""A command on a terminal."""

import os
import pty
import signal
import subprocess
import time

from cometmq.peers.comet import PROGRAM

TIMEOUT_S = 180


class OnTerminal:
    """A command whose standard error, and optionally output, is a terminal."""

    def __init__(self, *command, stdout=subprocess.DEVNULL, stdin=subprocess.DEVNULL):
        self._master, slave = pty.openpty()
        self.process = subprocess.Popen(
            [str(PROGRAM), *map(str, command)],
            stdin=stdin,
            stdout=slave if stdout is None else stdout,
            stderr=slave,
            start_new_session=True,
        )
        os.close(slave)
        os.set_blocking(self._master, False)
        self.shown = ""

    def read(self):
        try:
            self.shown += os.read(self._master, 1 << 16).decode("utf-8", "replace")
        except (BlockingIOError, OSError):
            return

    def wait_for(self, text):
        deadline = time.monotonic() + TIMEOUT_S
        while text not in self.shown:
            assert time.monotonic() < deadline, self.shown
            assert self.process.poll() is None or text in self.shown, self.shown
            self.read()
            time.sleep(0.01)

    def interrupt(self):
        self.process.send_signal(signal.SIGINT)
        return self.end()

    def end(self):
        status = self.process.wait(TIMEOUT_S)
        self.read()
        os.close(self._master)
        return status
