# SPDX-License-Identifier: Apache-2.0
"""Signals that arrive more than once."""

import signal
from time import sleep

import pytest

import cometmq.cli.main
from cometmq.cli.entry import EXIT_INTERRUPTED, main
from cometmq.peers.comet import PROGRAM
from cometmq.peers.processes import Child


@pytest.mark.parametrize("pause_ms", range(6))
def test_a_signal_that_is_sent_twice_ends_consume_without_a_traceback(
    suite, ask, topic, tmp_path, pause_ms
):
    """`make`, or a wrapper beside its process group, passes one Ctrl-C on."""
    ask("produce", topic, *map(str, range(200)))
    command = [str(PROGRAM), "consume", topic, "-g", f"{topic}-twice", "--from", "first"]
    child = Child("consume", [*command, "-n", suite.namesrv], log_path=tmp_path / "log")
    try:
        child.wait_until(lambda: len(child.log().splitlines()) == 200, 60, "all messages")
        child._signal(signal.SIGINT)
        sleep(pause_ms / 1000)
        child._signal(signal.SIGINT)
        child.wait_until(lambda: child.exit_status is not None, 60, "end")
        # Once `main` has ended, a signal ends the process itself, for which a shell says 130, too.
        assert child.exit_status in {130, -signal.SIGINT}
        assert len(child.log().splitlines()) == 200, child.log()
    finally:
        child.kill()


def test_an_interrupt_that_python_wraps_in_another_error_ends_without_a_traceback(monkeypatch):
    """Python 3.11 does so while it makes a class, as in the imports of a command."""

    class Interrupted:
        def __set_name__(self, owner, name):
            raise KeyboardInterrupt

    def command():
        type("Enumeration", (), {"member": Interrupted()})

    before = signal.getsignal(signal.SIGINT)
    monkeypatch.setattr(cometmq.cli.main, "main", command)
    with pytest.raises(SystemExit) as ended:
        main()
    signal.signal(signal.SIGINT, before)
    assert ended.value.code == EXIT_INTERRUPTED


def test_another_error_of_a_command_is_raised(monkeypatch):
    def command():
        raise RuntimeError("a defect")

    monkeypatch.setattr(cometmq.cli.main, "main", command)
    with pytest.raises(RuntimeError, match="a defect"):
        main()
