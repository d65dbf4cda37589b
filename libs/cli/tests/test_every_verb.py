# SPDX-License-Identifier: Apache-2.0
"""Every verb of the table refuses bad input in one clear line, and ends soon."""

import json
import os
import re
import signal
import socket
import socketserver
import struct
import subprocess
import threading
from contextlib import contextmanager
from time import monotonic
from typing import Any

import pytest

from cometmq.cli.lazy import TAKE_BYTES
from cometmq.client import sync
from cometmq.peers.comet import PROGRAM
from cometmq.peers.long_forms import IS_LONG, seeds
from cometmq.peers.suite import running_suite

from . import conftest
from .every_verb import kind_of, verbs

DOWN = "127.0.0.1:1"
PATIENCE_MS = 30
ENDS_S = 90
LINES_MAX = 3
UNSAFE = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069]")
ENDLESS = {"mcp", "startMonitoring"}
"""Verbs that run until a signal ends them."""
OFFLINE = {
    "context add", "debug", "definitions import", "restore", "txn verify",
    "brokerConsumeStats", "producer", "sendMsgStatus",
}  # fmt: skip
"""Verbs that need no name server, or that first read a file or ask a broker."""
WITHOUT_BODY = {"updateOrderConf", "updateKvConfig", "deleteKvConfig", "getNamesrvConfig"}
"""Verbs that do not read a JSON body of the name server."""
LATE = {"restore", "group seek"}
"""Verbs that ask the cluster, or need a folder, before they read their file."""
AMBIGUOUS = {"message trace", "message show", "config check", "definitions import"}
"""Verbs that refuse the combination of their words, or a folder as their file, first."""
ASKING = [it for it in verbs() if it.asks_a_cluster and it.name not in ENDLESS]
LIES = (b"[]", b"null", b"\xff\xfe", b'{"brokerAddrTable":5,"brokerDatas":7,"topicList":{"a":1}}',
        b"[" * 5_000, b"{}")  # fmt: skip
EMPTY = LIES[-1]
"""The answer of a cluster without brokers."""
NAMES = (
    "Unknown", "\u65e5\u672c", "a b", "<script>alert(1)</script>", "\u202egnp.exe", "\x1b[2J",
    "../../etc/passwd", "{0}%s$(id)", "x" * 3_000, "",
)  # fmt: skip


def by_name(verb):
    return verb.name


class Liar(socketserver.StreamRequestHandler):
    """Answers each request with success, and with the body of the server."""

    def handle(self):
        server: Any = self.server
        while head := self.rfile.read(8):
            length, mark = struct.unpack(">II", head)
            header = json.loads(self.rfile.read(mark))  # JSON has the serialization 0
            self.rfile.read(length - 4 - mark)
            fields = {"code": 0, "flag": 1, "language": "JAVA", "version": 399,
                      "opaque": header["opaque"]}  # fmt: skip
            answer = json.dumps(fields).encode()
            prefix = struct.pack(">II", 4 + len(answer) + len(server.lie), len(answer))
            self.wfile.write(prefix + answer + server.lie)


class Stranger(socketserver.StreamRequestHandler):
    """Speaks the protocol of another program."""

    def handle(self):
        self.wfile.write(b"HTTP/1.1 400 Bad Request\r\nContent-Length: 0\r\n\r\n")


@contextmanager
def serving(handler):
    class Server(socketserver.ThreadingTCPServer):
        daemon_threads = True
        lie = b""

        def handle_error(self, *_):
            """A client that goes away is expected."""

    with Server(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, args=(0.01,)).start()
        yield server, f"127.0.0.1:{server.server_address[1]}"
        server.shutdown()


@pytest.fixture(scope="module")
def liar():
    with serving(Liar) as server:
        yield server


@pytest.fixture(scope="module")
def stranger():
    with serving(Stranger) as (_, address):
        yield address


@pytest.fixture
def hanging(silent, monkeypatch):
    monkeypatch.setattr(conftest, "PATIENCE_MS", PATIENCE_MS)
    with socket.create_server(("127.0.0.1", 0)) as server:
        address = f"127.0.0.1:{server.getsockname()[1]}"
        silent.add(address)
        yield address


@pytest.fixture(scope="module")
def plain(tmp_path_factory):
    with running_suite(tmp_path_factory.mktemp("plain")) as suite:
        with sync.AdminClient(suite.namesrv) as admin:
            admin.call(lambda it: it.create_topic("Orders"))
            changes = {"autoCreateTopicEnable": "false"}
            admin.call(lambda it: it.broker(suite.broker).update_config(changes))
        yield suite


@pytest.fixture
def refused(call, tmp_path, monkeypatch):
    """Run a verb that must fail; return what it said."""
    monkeypatch.chdir(tmp_path)

    def refused(*words, may_succeed=False):
        begin = monotonic()
        done = call(*words)
        text = done.out + done.err
        assert monotonic() - begin < ENDS_S, words
        assert "Traceback" not in text
        assert not UNSAFE.search(text), UNSAFE.findall(text)
        assert done.status in ({0, 1, 2, 3} if may_succeed else {1, 2, 3}), (words, done)
        assert text or done.status == 0, words
        assert done.err.count("\n") <= LINES_MAX, done.err
        assert done.status == 0 or not any(tmp_path.glob("**/*.json")), "it leaves no file"
        return text

    return refused


SHARES = 3


def each(verbs, share):
    """Run a test for each verb; in `make test`, only for the verbs of this share, so that each verb
    gets one of the tests below.
    """
    mine = [it for it in verbs if IS_LONG or ASKING.index(it) % SHARES == share]
    return pytest.mark.parametrize("verb", mine, ids=by_name)


def chosen(verb, cases, seed):
    """Return another case for each verb and seed."""
    return cases[(ASKING.index(verb) // SHARES + seed) % len(cases)]


@seeds(1, long=3)
@each([it for it in ASKING if it.name not in OFFLINE], 0)
def test_name_servers_that_do_not_answer_are_named(
    refused, tmp_path, hanging, stranger, verb, seed
):
    address = chosen(verb, (DOWN, hanging, stranger), seed)
    assert address in refused(*verb.words({}, tmp_path), "-n", address)


@seeds(1, long=len(LIES))
@each(ASKING, 1)
def test_name_servers_that_lie_are_named(refused, tmp_path, liar, verb, seed):
    server, address = liar
    server.lie = chosen(verb, LIES, seed)
    reads = server.lie != EMPTY and verb.name not in OFFLINE | WITHOUT_BODY
    said = refused(*verb.words({}, tmp_path), "-n", address, may_succeed=not reads)
    assert address in said or not reads


NAMING = [
    it for it in ASKING
    if any(param.required and kind_of(param) == "text" for param in it.command.params)
]  # fmt: skip


@seeds(1, long=len(NAMES))
@each(NAMING, 2)
def test_names_that_do_not_exist_or_cannot_exist(refused, tmp_path, plain, verb, seed):
    name = chosen(verb, NAMES, seed).replace("Unknown", f"Unknown-{ASKING.index(verb)}")
    named = {it.name for it in verb.command.params if it.required and kind_of(it) == "text"}
    words = verb.words(dict.fromkeys(named, name or "EMPTY"), tmp_path)
    refused(*(name if it == "EMPTY" else it for it in words), "-n", plain.namesrv, may_succeed=True)


def with_option(verb, param, value, folder):
    """Return a verb's words with another value of one parameter."""
    if param.required:
        return verb.words({param.name: value}, folder)
    if param.param_type_name == "argument":
        return [*verb.words({}, folder), value]
    words = verb.words({}, folder)
    if (option := param.opts[-1]) in words:
        at = words.index(option)
        return [*words[:at], option, value, *words[at + 2 :]]
    return [*words, option, value]


@pytest.mark.parametrize("verb", verbs(), ids=by_name)
def test_what_should_be_a_number_is_named(refused, call, tmp_path, verb):
    for param in verb.command.params:
        if kind_of(param) == "number":
            done = call(*with_option(verb, param, "many", tmp_path))
            assert done.status == verb.exit_usage, (param.name, done)
            assert done.err.count("\n") == 1
            assert "many" in done.err
            assert any(it.strip("-") in done.err for it in (param.name, *param.opts)), done.err


@pytest.mark.parametrize("verb", verbs(), ids=by_name)
def test_a_text_that_is_not_utf8_is_named(call, tmp_path, monkeypatch, verb):
    monkeypatch.chdir(tmp_path)  # `debug bundle` writes a file
    for param in verb.command.params:
        if kind_of(param) == "text" and param.name not in {*TAKE_BYTES, "config"}:
            done = call(*with_option(verb, param, os.fsdecode(b"\xbc\xfc"), tmp_path))
            assert (done.status, done.out) == (verb.exit_usage, ""), (param.name, done)
            assert done.err.count("\n") == 1, done.err
            assert "UTF-8" in done.err or verb.name in AMBIGUOUS


@pytest.mark.parametrize("verb", [it for it in verbs() if it.name not in ENDLESS], ids=by_name)
def test_files_that_cannot_be_read_or_written_are_named(refused, call, tmp_path, plain, verb):
    """Nobody, not even root, reads, writes or creates anything below a file."""
    file = tmp_path / "file"
    file.write_text("")
    impossible = os.fsdecode(bytes(file / "below") + b"\xbc\xfc")
    for param in verb.command.params:
        is_late = verb.name in LATE and not param.required
        if kind_of(param) == "path" and not is_late:
            words = with_option(verb, param, impossible, tmp_path)
            place = ["-n", plain.namesrv] if verb.asks_a_cluster else []
            done = call(*words, *place)
            assert done.status in {1, 2, 3}, (param.name, done)
            assert done.err.count("\n") == 1, done.err
            assert str(file / "below") in done.err, (param.name, done)


STEP = 1 if IS_LONG else 30
"""`make test` starts only every STEP-th verb as a process."""


@pytest.mark.long
@pytest.mark.parametrize(
    "verb", [it for it in ASKING if it.name not in OFFLINE][::STEP], ids=by_name
)
def test_ctrl_c_ends_a_verb_that_waits_for_a_server(tmp_path, verb):
    with socket.create_server(("127.0.0.1", 0)) as server:
        address = f"127.0.0.1:{server.getsockname()[1]}"
        command = [str(PROGRAM), *verb.words({}, tmp_path), "-n", address]
        with subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE
        ) as child:
            server.settimeout(ENDS_S)
            connection, _ = server.accept()
            with connection:
                child.send_signal(signal.SIGINT)
                out, err = child.communicate(timeout=ENDS_S)
    assert child.returncode == 130, (out, err)
    assert b"Traceback" not in err
    assert err.count(b"\n") <= LINES_MAX


@pytest.mark.long
@pytest.mark.parametrize("verb", ASKING[::STEP], ids=by_name)
def test_output_that_nobody_reads_ends_a_verb_without_a_traceback(tmp_path, plain, verb):
    reader, writer = os.pipe()
    os.close(reader)
    try:
        done = subprocess.run(
            [str(PROGRAM), *verb.words({}, tmp_path), "-n", plain.namesrv],
            stdin=subprocess.DEVNULL, stdout=writer, stderr=subprocess.PIPE, timeout=ENDS_S,
            check=False, cwd=tmp_path,
        )  # fmt: skip
    finally:
        os.close(writer)
    assert done.returncode in {-signal.SIGPIPE, 0, 1, 2, 3}
    assert b"Traceback" not in done.stderr
    assert done.stderr.count(b"\n") <= LINES_MAX, done.stderr
