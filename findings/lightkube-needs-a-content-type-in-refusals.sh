#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# lightkube 1.0.1: a refusal of the API server is raised as ApiError with its status, which callers look
# at to wait and try again. A refusal without a Content-Type, as HTTP allows (RFC 9110, 8.3) and as load
# balancers in front of API servers send it, is raised as KeyError instead, without the status.
. "$(dirname "$0")/common.sh"
python_packages lightkube==1.0.1
cat >calls.py <<'PY'
import sys
import threading
from http.server import BaseHTTPRequestHandler, HTTPServer

from lightkube import ApiError, Client, KubeConfig
from lightkube.config.models import Cluster, User
from lightkube.resources.core_v1 import Pod


class Busy(BaseHTTPRequestHandler):
    def do_GET(self):
        body = b'{"kind":"Status","code":503,"message":"busy"}'
        self.send_response(503)
        self.send_header("Content-Length", str(len(body)))
        if sys.argv[1] == "typed":
            self.send_header("Content-Type", "application/json")
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_):
        pass


server = HTTPServer(("127.0.0.1", 0), Busy)
threading.Thread(target=server.serve_forever, daemon=True).start()
place = Cluster(server=f"http://127.0.0.1:{server.server_port}")
client = Client(KubeConfig.from_one(cluster=place, user=User(token="t")))
try:
    client.get(Pod, "a")
except ApiError as error:
    print("ApiError", error.status.code)
except Exception as error:
    print(type(error).__name__)
PY
expect "with a Content-Type" "ApiError 503" "$(venv/bin/python calls.py typed)"
expect "without one" "KeyError" "$(venv/bin/python calls.py untyped)"
