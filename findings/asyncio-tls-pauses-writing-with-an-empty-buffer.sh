#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# CPython 3.11 to 3.14, asyncio: set_write_buffer_limits(high=0) asks to hear of each byte that waits. On
# a plain socket, pause_writing() is called when data waits. On a TLS transport, the call itself pauses
# the protocol while the buffer is empty, so a server that waits for resume_writing() before it writes
# waits for ever. trustme 1.2.1 makes the certificate.
. "$(dirname "$0")/common.sh"
python_packages trustme==1.2.1
cat >pauses.py <<'PY'
import asyncio
import ssl
import sys

import trustme


class Server(asyncio.Protocol):
    def __init__(self, seen):
        self.seen = seen

    def connection_made(self, transport):
        self.transport = transport
        transport.set_write_buffer_limits(high=0)

    def pause_writing(self):
        if not self.transport.get_write_buffer_size():
            self.seen.append("paused with an empty buffer")

    def data_received(self, data):
        self.transport.close()


async def main():
    authority = trustme.CA()
    serving, calling = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH), ssl.create_default_context()
    authority.issue_cert("localhost").configure_cert(serving)
    authority.configure_trust(calling)
    is_tls, seen = sys.argv[1] == "tls", []
    server = await asyncio.get_running_loop().create_server(
        lambda: Server(seen), "127.0.0.1", 0, ssl=serving if is_tls else None
    )
    _, port = server.sockets[0].getsockname()
    reader, writer = await asyncio.open_connection(
        "127.0.0.1", port, **({"ssl": calling, "server_hostname": "localhost"} if is_tls else {})
    )
    writer.write(b"end")
    await reader.read()
    writer.close()
    server.close()
    print(*seen or ["not paused"], sep="; ")


asyncio.run(main())
PY
expect "plain socket" "not paused" "$(venv/bin/python pauses.py plain)"
expect "TLS" "paused with an empty buffer" "$(venv/bin/python pauses.py tls)"
