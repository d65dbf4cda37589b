# SPDX-License-Identifier: Apache-2.0
"""The networks and disks of the fault tests fail as they should, and recover."""

import errno
import socket
import subprocess
import sys
from contextlib import ExitStack, closing, suppress
from functools import partial
from pathlib import Path

import pytest

from cometmq.ha import state as states
from cometmq.ha.durable import OsFiles
from cometmq.ha.epochs import Entry, EpochFile, History, begun
from cometmq.peers.ha.disk import Disk
from cometmq.peers.ha.network import OURS, Network, both_ways
from cometmq.peers.processes import wait_until

PORT = 4000
DEADLINE_S = 60
RESEND_S = 0.1
"""A datagram may be dropped while the address of a host is looked up."""
ECHO = f"""
import socket
with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as it:
    it.bind(("0.0.0.0", {PORT}))
    print("ready", flush=True)
    while True:
        data, peer = it.recvfrom(100)
        print(data.decode(), flush=True)
        it.sendto(data, peer)
"""


class Echo:
    """A program on a host that prints and returns datagrams."""

    def __init__(self, network, host, stack, folder):
        self._address = (network.address(host), PORT)
        self._log = folder / host
        with self._log.open("wb") as log:
            words = network.command(host, [sys.executable, "-c", ECHO])
            process = stack.enter_context(subprocess.Popen(words, stdout=log))
        stack.callback(process.kill)
        wait_until(lambda: self.has_received("ready"), DEADLINE_S, "echo")

    def has_received(self, text):
        return text in self._log.read_text()

    def answers(self, text):
        """Send a datagram, and return whether it comes back at once."""
        with closing(socket.socket(socket.AF_INET, socket.SOCK_DGRAM)) as ours:
            ours.settimeout(RESEND_S)
            ours.sendto(text.encode(), self._address)
            with suppress(TimeoutError):
                return ours.recv(100).decode() == text
        return False


def test_a_partition_drops_packets_in_its_directions_only(tmp_path: Path):
    network = Network(["one", "other"])
    with network.running(), ExitStack() as stack:
        one, other = (Echo(network, host, stack, tmp_path) for host in ("one", "other"))
        for echo in (one, other):
            wait_until(partial(echo.answers, "before"), DEADLINE_S, "an answer")
        network.cut([("one", OURS)])
        assert not one.answers("half")
        wait_until(lambda: one.has_received("half"), DEADLINE_S, "the way there is open")
        network.cut(both_ways(OURS, ["one"]))
        assert not one.answers("cut")
        wait_until(lambda: other.answers("cut"), DEADLINE_S, "the other host answers")
        network.heal()
        wait_until(lambda: one.answers("healed"), DEADLINE_S, "an answer")
        assert not one.has_received("cut")


@pytest.fixture
def disk(tmp_path: Path):
    it = Disk(tmp_path)
    it.mount()
    yield it
    it.unmount()
    assert not it.store.exists()


def test_a_full_disk_takes_writes_again_once_it_is_freed(disk: Disk):
    disk.fill()
    with pytest.raises(OSError, match="No space") as caught:
        disk.store.write_bytes(bytes(1 << 20))
    assert caught.value.errno == errno.ENOSPC
    disk.free()
    disk.store.write_bytes(bytes(1 << 20))


def test_a_member_saves_its_state_and_its_history_on_a_full_disk(disk: Disk):
    folder = disk.store
    folder.mkdir()
    state = states.created("orders", 1, "boot", lambda: "incarnation")
    history: History = (Entry(1, 0),)
    states.StateFile(folder, OsFiles()).save(state)
    EpochFile(folder, OsFiles()).save(history)
    disk.fill()
    with pytest.raises(OSError, match="No space"):
        (folder / "other").write_bytes(b"x")
    for epoch in range(2, 20):
        state, history = states.promised(state, epoch), begun(history, epoch, epoch)
        states.StateFile(folder, OsFiles()).save(state)
        EpochFile(folder, OsFiles()).save(history)
        assert states.StateFile(folder, OsFiles()).load("orders", 1) == state
        assert EpochFile(folder, OsFiles()).load() == history


def test_writes_to_a_frozen_disk_wait(disk: Disk):
    disk.store.write_bytes(b"")
    write = [sys.executable, "-c", f"open({str(disk.store)!r}, 'wb').write(b'thawed')"]
    disk.freeze()
    with subprocess.Popen(write) as process:
        try:
            state = Path(f"/proc/{process.pid}/stat")
            wait_until(lambda: ") D " in state.read_text(), DEADLINE_S, "the writer waits")
        finally:  # a frozen writer cannot be killed
            disk.thaw()
    assert process.returncode == 0
    assert disk.store.read_bytes() == b"thawed"
