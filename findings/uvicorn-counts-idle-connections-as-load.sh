#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# uvicorn 0.54.0. `limit_concurrency` is compared with the number of open connections, also those
# that are idle between two requests. With a limit of 5, four browsers or scrapers that keep a
# connection alive and ask for nothing make the server answer 503 to the next client.
. "$(dirname "$0")/common.sh"
python_packages uvicorn==0.54.0
cat >job.py <<'PY'
import asyncio
import http.client
import sys
import threading
import time

import uvicorn


async def app(scope, receive, send):
    await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"0")]})
    await send({"type": "http.response.body"})


server = uvicorn.Server(uvicorn.Config(app, port=0, limit_concurrency=5, log_level="error", lifespan="off"))
threading.Thread(target=lambda: asyncio.run(server.serve()), daemon=True).start()
deadline = time.monotonic() + 20
while not server.started and time.monotonic() < deadline:
    time.sleep(0.01)
port = server.servers[0].sockets[0].getsockname()[1]


def ask(connection):
    connection.request("GET", "/")
    answer = connection.getresponse()
    answer.read()
    return answer.status


idle = [http.client.HTTPConnection("127.0.0.1", port, timeout=10) for _ in range(int(sys.argv[1]))]
for connection in idle:
    ask(connection)
print(ask(http.client.HTTPConnection("127.0.0.1", port, timeout=10)))
PY
expect "limit 5, three idle connections" 200 "$(venv/bin/python job.py 3)"
expect "limit 5, four idle connections" 503 "$(venv/bin/python job.py 4)"
