#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# grpcio 1.85.3: a server that refuses a connection says why in the debug data of a GOAWAY frame. If the
# frame follows the request, the caller reads the text at once. If it comes before the request, right
# behind the server's settings, as RFC 9113 (6.8) allows, grpcio waits until the call's deadline, although
# the call does not ask for that (wait_for_ready), and the caller reads "Deadline Exceeded" without the text. So a server that wants to be
# understood waits for the request before it refuses.
. "$(dirname "$0")/common.sh"
python_packages grpcio==1.85.3 h2==4.4.1
cat >server.py <<'PY'
import socket
import sys
import threading

from h2.config import H2Configuration
from h2.connection import H2Connection
from h2.events import RequestReceived

SETTINGS = bytes.fromhex("000000040000000000")
TEXT = b"speak another protocol"
GOAWAY = (8 + len(TEXT)).to_bytes(3, "big") + b"\x07\x00\0\0\0\0" + bytes(8) + TEXT


def serve(peer):
    if sys.argv[1] == "before":
        peer.sendall(SETTINGS + GOAWAY)
        peer.shutdown(socket.SHUT_WR)
        while peer.recv(1 << 16):
            pass
        return
    reading = H2Connection(H2Configuration(client_side=False))
    reading.initiate_connection()
    peer.sendall(reading.data_to_send())
    while data := peer.recv(1 << 16):
        if any(isinstance(event, RequestReceived) for event in reading.receive_data(data)):
            peer.sendall(GOAWAY)
        peer.sendall(reading.data_to_send())


with socket.create_server(("127.0.0.1", 0)) as listening:
    print(listening.getsockname()[1], flush=True)
    while True:
        peer, _ = listening.accept()
        threading.Thread(target=serve, args=(peer,), daemon=True).start()
PY
cat >call.py <<'PY'
import sys

import grpc

with grpc.insecure_channel(f"127.0.0.1:{sys.argv[1]}") as channel:
    try:
        channel.unary_unary("/a.Service/Call")(b"", timeout=3)
    except grpc.RpcError as error:
        print(error.code().name, "with" if "speak another" in error.details() else "without", "text")
PY
ask() { # before or after: what the caller reads
    venv/bin/python server.py "$1" >"$1.log" &
    until [ -s "$1.log" ]; do sleep 0.1; done
    venv/bin/python call.py "$(head -1 "$1.log")" 2>errors
    kill $! && wait $! 2>/dev/null || true
}
expect "GOAWAY before the request" "DEADLINE_EXCEEDED without text" "$(ask before)"
expect "GOAWAY after the request" "UNAVAILABLE with text" "$(ask after)"
