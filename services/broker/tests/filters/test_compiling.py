# SPDX-License-Identifier: Apache-2.0

from collections.abc import Callable

import pytest

from cometmq.broker.filters import compiling
from cometmq.broker.filters.compiling import AT_ONCE_CHARS_MAX, COMPILED_CHARS_MAX, Compiler
from cometmq.broker.filters.sql import CHARS_MAX, SqlError, compile_sql, is_compiled
from cometmq.broker.filters.sql.parser import PART_TOKENS
from cometmq.remoting.errors import SystemBusy
from cometmq.runtime.clock import FakeClock


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


def test_a_short_expression_is_compiled_at_once(rig: Rig) -> None:
    done: list[bool] = []
    rig.compiler.when_ready("short = 1", lambda: done.append(True))
    assert done == [True]
    rig.compiler.check("short = 2")
    assert not rig.turns


def test_a_long_expression_is_compiled_in_steps(rig: Rig) -> None:
    text, done = long_text("parts"), []
    rig.compiler.when_ready(text, lambda: done.append(is_compiled(text)))
    assert not done
    turn_count = rig.run()
    assert done == [True]
    assert turn_count > 4 * text.count("OR") // PART_TOKENS - 2
    assert compile_sql(text).matches({"parts": "1"})
    rig.compiler.check(text)


def test_the_error_of_a_long_expression_is_cached(rig: Rig) -> None:
    text = long_text("wrong") + " OR"
    rig.compiler.when_ready(text, lambda: None)
    rig.run()
    assert is_compiled(text)
    with pytest.raises(SqlError, match="Encountered"):
        compile_sql(text)


def test_a_synchronous_caller_has_to_retry(rig: Rig) -> None:
    text = long_text("again")
    for _ in range(2):
        with pytest.raises(SystemBusy, match="COMPILING_FILTER"):
            rig.compiler.check(text)
    rig.run()
    rig.compiler.check(text)


def test_equal_expressions_are_compiled_once(rig: Rig) -> None:
    text, done = long_text("shared"), []
    rig.compiler.when_ready(text, lambda: done.append(1))
    alone = len(rig.turns)
    rig.compiler.when_ready(text, lambda: done.append(2))
    assert len(rig.turns) == alone == 1
    rig.run()
    assert done == [1, 2]


def test_long_expressions_are_compiled_one_after_the_other(rig: Rig) -> None:
    done: list[str] = []
    for name in ("first", "second"):
        rig.compiler.when_ready(long_text(name), lambda name=name: done.append(name))  # type: ignore[misc]
    assert len(rig.turns) == 1
    rig.run()
    assert done == ["first", "second"]


def test_many_short_expressions_at_once_are_queued(rig: Rig) -> None:
    for number in range(AT_ONCE_CHARS_MAX // 100):
        rig.compiler.check(f"moment = {number}".ljust(100))
    with pytest.raises(SystemBusy, match="COMPILING_FILTER"):
        rig.compiler.check("moment = 'more'".ljust(100))
    rig.clock.advance(1_000)
    rig.compiler.check("moment = 'later'".ljust(100))


def test_the_total_of_characters_is_bounded(rig: Rig) -> None:
    for number in range(COMPILED_CHARS_MAX // CHARS_MAX):
        rig.compiler.when_ready(f"load = '{number}'".ljust(CHARS_MAX), lambda: None)
    with pytest.raises(SystemBusy, match="TOO_MANY_FILTERS"):
        rig.compiler.check("load = 1000")
    compile_sql("load = 1001")
    rig.compiler.check("load = 1001")
    rig.clock.advance(1_000)
    rig.compiler.check("load = 1000")


def test_the_number_of_pending_callbacks_is_bounded(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(compiling, "WAITING_MAX", 2)
    text = long_text("crowd")
    for _ in range(2):
        rig.compiler.when_ready(text, lambda: None)
    with pytest.raises(SystemBusy, match="too many requests wait"):
        rig.compiler.when_ready(text, lambda: None)
    rig.run()
    rig.compiler.when_ready(long_text("crowd2"), lambda: None)


def test_a_too_long_expression_is_refused_at_once(rig: Rig) -> None:
    rig.compiler.check("x" * (CHARS_MAX + 1))
    assert not rig.turns
