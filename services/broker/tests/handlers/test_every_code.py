# SPDX-License-Identifier: Apache-2.0
"""A row is all that a request code needs besides its handler."""

import subprocess
import sys
import types
from pathlib import Path

import pytest

from cometmq.broker.acl.check import ADMIN_CODES, ADMIN_CODES_OF_5, NEEDS, NEEDS_OF_5, UNCHANGING
from cometmq.broker.copies.gate.diversion import KINDS
from cometmq.broker.handlers import HANDLERS, VIP_EXCLUDED
from cometmq.remoting.codes import RequestCode as Code
from cometmq.remoting.commands import COMMANDS, handlers_of
from cometmq.remoting.commands.table import PUBLIC, Need, Service, to_broker


def test_every_code_has_a_right() -> None:
    """END_TRANSACTION's topic is known only to its handler, which checks the right to it."""
    rights = [*NEEDS, *NEEDS_OF_5, *ADMIN_CODES, *ADMIN_CODES_OF_5, *UNCHANGING]
    assert HANDLERS.keys() == {*rights, Code.END_TRANSACTION}
    assert {it for it in rights if rights.count(it) > 1} == NEEDS.keys() & NEEDS_OF_5.keys()
    assert all(COMMANDS[code].access is not PUBLIC for code in HANDLERS)


def test_a_row_of_the_broker_states_its_right_and_its_kind() -> None:
    with pytest.raises(TypeError, match="2 required positional"):
        to_broker(30_999)  # type: ignore[call-arg]  # the defaults would be permissive


def test_fields_that_name_a_right_exist() -> None:
    for command in COMMANDS.values():
        assert set(command.access.fields) <= set(command.header_type.__struct_fields__)
        assert bool(command.access.fields) is (command.access.need is Need.CONSUME)


@pytest.mark.parametrize("service", Service)
def test_only_brokers_have_kinds_and_a_second_port(service: Service) -> None:
    rows = {code: it for code, it in COMMANDS.items() if it.services == (service,)}
    assert rows
    if service is not Service.BROKER:
        assert not rows.keys() & {*KINDS, *VIP_EXCLUDED, *HANDLERS}


def test_a_code_without_its_handler_is_refused_at_the_start() -> None:
    empty = types.ModuleType("empty")
    with pytest.raises(LookupError, match="SEND_MESSAGE needs one function send_message, and 0 of"):
        handlers_of(Service.BROKER, empty)


MADE_UP = """
import sys
from importlib.machinery import PathFinder, SourceFileLoader

ADDED = {
    "cometmq.remoting.commands": (
        "    # fmt: on",
        "    GET_WEATHER = to_broker(30_999, ADMIN, Kind.CHANGE, topics.GetTopicConfig,"
        " reply_body=json_body(TopicList), has_second_port=False)\\n    # fmt: on",
    ),
    "cometmq.broker.handlers.admin": (
        "def get_broker_config(",
        "def get_weather(broker: Broker, call: Call[NoHeader]) -> Reply:\\n"
        "    return Reply(remark='fine')\\n\\n\\n"
        "def get_broker_config(",
    ),
}


class Loader(SourceFileLoader):
    def get_code(self, fullname):
        source = self.get_data(self.path).decode()
        old, new = ADDED[fullname]
        assert source.count(old) == 1, fullname
        return compile(source.replace(old, new), self.path, "exec")


class Finder:
    @staticmethod
    def find_spec(name, path=None, target=None):
        spec = PathFinder.find_spec(name, path) if name in ADDED else None
        if spec is not None:
            spec.loader = Loader(name, spec.origin)
        return spec


sys.meta_path.insert(0, Finder)

from pathlib import Path
from random import Random

from generators.codes import page
from generators.commands import commands_page

from cometmq.broker.acl.check import ADMIN_CODES
from cometmq.broker.copies.gate.diversion import KINDS
from cometmq.broker.handlers import HANDLERS, VIP_EXCLUDED
from tests.fuzz.hostile import Hostile
from cometmq.remoting.codes import request_name
from cometmq.remoting.transport.bodies import NO_BODY_BYTES_MAX, bytes_max
from cometmq.remoting.transport.server import LARGE_ANSWERS

code = 30_999
assert request_name(code) == "GET_WEATHER (30999)"
assert HANDLERS[code].__name__ == "get_weather"
assert code in ADMIN_CODES, "rights"
assert KINDS[code].name == "CHANGE", "the gate"
assert code in VIP_EXCLUDED, "the second port"
assert code in LARGE_ANSWERS, "large answers"
assert bytes_max(code) == NO_BODY_BYTES_MAX
assert "| GET_WEATHER | **yes** |  |  |" in page(), page()
assert "## 30999 GET_WEATHER" in commands_page()
fuzz = Hostile(Path(sys.argv[1]), Random(1), [code])
assert any(shot.code == code for _ in range(20) for shot in fuzz.shots(50))
print("done")
"""


def test_a_made_up_code_needs_one_row_and_one_handler() -> None:
    """Rights, the gate, the second port, documents and fuzz find a code that only its row names."""
    root = Path(__file__).parents[4]
    done = subprocess.run(
        [sys.executable, "-c", MADE_UP, root / "tests" / "golden"],
        cwd=root / "docs", env={"PYTHONPATH": str(root)},
        capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip
    assert done.stdout == "done\n", done.stderr
