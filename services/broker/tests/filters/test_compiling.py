# SPDX-License-Identifier: Apache-2.0

from collections.abc import Callable
from functools import partial

import pytest

from cometmq.broker.filters.compiling import (
    AT_ONCE_CHARS_MAX,
    COMPILED_CHARS_MAX,
    WAITING_MAX,
    Compiler,
    Shares,
    Who,
)
from cometmq.broker.filters.sql import CHARS_MAX, compile_sql, is_compiled
from cometmq.broker.limits import HEARTBEAT_FILTER_CHARS
from cometmq.remoting.errors import SystemBusy
from cometmq.remoting.sql.parser import PART_TOKENS
from cometmq.remoting.transport.flow.fair_queue import Requester
from cometmq.testing.runtime.clock import FakeClock


def who(owner: str, connection: int = 1) -> Who:
    return lambda: Requester(owner, connection)


A, B = who("a"), who("b")


class Rig:
    """A compiler whose turns of the loop are run by the test."""

    def __init__(self) -> None:
        self.clock = FakeClock()
        self.turns: list[Callable[[], None]] = []
        self.compiler = Compiler(self.clock.now_ms, self.turns.append)

    def run(self) -> int:
        """Run all pending turns; return how many ran."""
        count = 0
        while self.turns:
            self.turns.pop(0)()
            count += 1
        return count


@pytest.fixture
def rig() -> Rig:
    return Rig()


def long_text(name: str) -> str:
    text = f"{name} = 1" + " OR a = 1" * 1_000
    return text[: text.rindex(" OR", 0, CHARS_MAX)]


def test_expressions_wait_while_the_parser_is_imported() -> None:
    rig, loads, done = Rig(), list[Callable[[], None]](), list[str]()
    compiler = Compiler(rig.clock.now_ms, rig.turns.append, loads.append)
    assert not loads
    for name in ("first", "second", "second"):
        compiler.when_ready(f"loading_{name} = 1", partial(done.append, name), A)
    with pytest.raises(SystemBusy, match="being compiled"):
        compiler.check("loading_third = 1", B)
    assert (len(loads), rig.run(), done) == (1, 0, [])
    loads[0]()
    rig.run()
    assert done == ["first", "second", "second"]
    compiler.check("loading_third = 1", B)
    compiler.when_ready("loading_fourth = 1", partial(done.append, "fourth"), A)
    assert done[-1] == "fourth"


def test_a_long_expression_is_compiled_in_steps(rig: Rig) -> None:
    text, done = long_text("parts"), []
    rig.compiler.when_ready(text, lambda: done.append(is_compiled(text)), A)
    assert not done
    turn_count = rig.run()
    assert done == [True]
    assert turn_count > 4 * text.count("OR") // PART_TOKENS - 2
    assert compile_sql(text).matches({"parts": "1"})
    rig.compiler.check(text, A)


def test_equal_expressions_are_compiled_once(rig: Rig) -> None:
    text, done = long_text("shared"), []
    rig.compiler.when_ready(text, lambda: done.append(1), A)
    alone = len(rig.turns)
    rig.compiler.when_ready(text, lambda: done.append(2), A)
    assert len(rig.turns) == alone == 1
    rig.run()
    assert done == [1, 2]


def test_long_expressions_are_compiled_one_after_the_other(rig: Rig) -> None:
    done: list[str] = []
    for name in ("first", "second"):
        rig.compiler.when_ready(long_text(name), lambda name=name: done.append(name), A)  # type: ignore[misc]
    assert len(rig.turns) == 1
    rig.run()
    assert done == ["first", "second"]


def test_many_short_expressions_at_once_are_queued(rig: Rig) -> None:
    for number in range(AT_ONCE_CHARS_MAX // 100):
        rig.compiler.check(f"moment = {number}".ljust(100), A)
    with pytest.raises(SystemBusy, match="COMPILING_FILTER"):
        rig.compiler.check("moment = 'more'".ljust(100), A)
    rig.clock.advance(1_000)
    rig.compiler.check("moment = 'later'".ljust(100), A)


def test_the_total_of_characters_is_bounded(rig: Rig) -> None:
    for number in range(COMPILED_CHARS_MAX // CHARS_MAX):
        text = f"load = '{number}'".ljust(CHARS_MAX)
        rig.compiler.when_ready(text, lambda: None, who(str(number)))
    with pytest.raises(SystemBusy, match="TOO_MANY_FILTERS"):
        rig.compiler.check("load = 1000", A)
    compile_sql("load = 1001")
    rig.compiler.check("load = 1001", A)
    rig.clock.advance(1_000)
    rig.compiler.check("load = 1000", A)


def flood(rig: Rig, name: str, connections: int = 1) -> int:
    """Send long expressions of account A until they are refused; return how many were not."""
    accepted: list[str] = []

    def send() -> None:
        while len(accepted) < 100:
            text = long_text(f"{name}{len(accepted)}")
            connection = len(accepted) % connections
            rig.compiler.when_ready(text, lambda: None, who("a", connection))
            accepted.append(text)

    with pytest.raises(SystemBusy, match="TOO_MANY_FILTERS"):
        send()
    return len(accepted)


@pytest.mark.parametrize("connections", [1, 100])
def test_a_flood_of_expressions_leaves_a_part_of_the_total_to_other_accounts(
    rig: Rig, connections: int
) -> None:
    counts = []
    for second in range(3):
        counts.append(flood(rig, f"flood{second}x{connections}", connections))
        rig.run()
        rig.compiler.when_ready(long_text(f"honest{second}x{connections}"), lambda: None, B)
        rig.run()
        assert is_compiled(long_text(f"honest{second}x{connections}"))
        rig.clock.advance(1_000)
    assert counts[0] >= HEARTBEAT_FILTER_CHARS.fixed // CHARS_MAX  # a whole heartbeat
    assert min(counts) >= 2  # what the others leave


def test_a_flood_on_one_connection_leaves_a_part_to_other_connections(rig: Rig) -> None:
    flood(rig, "same")
    rig.run()
    rig.compiler.when_ready(long_text("neighbour"), lambda: None, who("a", 2))
    rig.run()
    assert is_compiled(long_text("neighbour"))


def test_the_expression_of_another_account_waits_for_one_of_a_flood(rig: Rig) -> None:
    done: list[str] = []
    for number in range(4):
        rig.compiler.when_ready(long_text(f"many{number}"), lambda: done.append("flood"), A)
    rig.turns.pop(0)()
    shared = long_text("many3")  # which the flood has sent, too
    rig.compiler.when_ready(long_text("single"), lambda: done.append("honest"), B)
    rig.compiler.when_ready(shared, lambda: done.append("shared"), B)
    rig.run()
    assert done == ["flood", "flood", "honest", "flood", "shared", "flood"]


def test_the_number_of_pending_callbacks_is_bounded(rig: Rig) -> None:
    text = long_text("crowd")
    for _ in range(WAITING_MAX // 3):
        rig.compiler.when_ready(text, lambda: None, A)
    with pytest.raises(SystemBusy, match="too many requests wait"):
        rig.compiler.when_ready(text, lambda: None, A)
    rig.compiler.when_ready(text, lambda: None, B)
    rig.run()
    rig.compiler.when_ready(long_text("crowd2"), lambda: None, A)


def test_connections_with_their_whole_share_take_no_memory() -> None:
    shares = Shares()
    for number in range(1_000):
        shares.charge(f"10.0.0.1:{number}", 100, number)
    assert len(shares) < 50
    shares.charge(A, 1 << 30, 1_000)
    assert shares.left(A, 1_000) < 0 < shares.left(A, 60_000)
