#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# rocketmq-python-client 5.1.2 (gRPC). `subscribe_lite("orders")` of a lite consumer asks the server
# for six lite topics, "o", "r", "d", "e", "r" and "s": it iterates over the name. The call succeeds.
# Only the periodic renewal, 30 s later, names the topic itself. Two more: a producer starts without
# an error while nothing listens at its endpoint, and a server that leaves the optional
# lite limits out of its settings makes every subscription fail. Here a server of the package's own definitions
# records what it is asked.
. "$(dirname "$0")/common.sh"
python_packages rocketmq-python-client==5.1.2
cat >job.py <<'PY'
import sys
import threading
from concurrent import futures

import grpc
from rocketmq import ClientConfiguration, Credentials, LiteSimpleConsumer, Producer
from rocketmq.grpc_protocol import definition_pb2 as types
from rocketmq.grpc_protocol import service_pb2 as calls
from rocketmq.grpc_protocol import service_pb2_grpc

asked, told = [], threading.Event()
quota = int(sys.argv[1])
OK = types.Status(code=types.OK)


class Server(service_pb2_grpc.MessagingServiceServicer):
    def QueryRoute(self, request, context):
        broker = types.Broker(name="b", endpoints=request.endpoints)
        queue = types.MessageQueue(topic=request.topic, permission=types.READ_WRITE, broker=broker)
        return calls.QueryRouteResponse(status=OK, message_queues=[queue])

    def Heartbeat(self, request, context):
        return calls.HeartbeatResponse(status=OK)

    def Telemetry(self, commands, context):
        for command in commands:
            if quota:
                command.settings.subscription.lite_subscription_quota = quota
                command.settings.subscription.max_lite_topic_size = 64
            yield calls.TelemetryCommand(status=OK, settings=command.settings)

    def SyncLiteSubscription(self, request, context):
        asked.extend(request.lite_topic_set)
        told.set()
        return calls.SyncLiteSubscriptionResponse(status=OK)

    def NotifyClientTermination(self, request, context):
        return calls.NotifyClientTerminationResponse(status=OK)


server = grpc.server(futures.ThreadPoolExecutor(8))
service_pb2_grpc.add_MessagingServiceServicer_to_server(Server(), server)
port = server.add_insecure_port("127.0.0.1:0")
if quota >= 0:
    server.start()
configuration = ClientConfiguration(f"127.0.0.1:{port}", Credentials())
if quota < 0:
    server.stop(0).wait()
    Producer(configuration, ("t",)).startup()
    print("started")
else:
    consumer = LiteSimpleConsumer("t", configuration, "g")
    consumer.startup()
    threading.Event().wait(3)  # the settings arrive in the background
    try:
        consumer.subscribe_lite("orders")
        told.wait(10)
        print(*sorted(asked))
    except Exception as refused:
        print("refused by the client:", type(refused).__name__)
sys.stdout.flush()
__import__("os")._exit(0)
PY
expect "asked for the topic orders" "d e o r r s" "$(venv/bin/python job.py 2000 2>log | tail -1)"
expect "without the limits in the settings" "refused by the client: IllegalStateException" "$(venv/bin/python job.py 0 2>log | tail -1)"
expect "a producer of which nothing listens" started "$(venv/bin/python job.py -1 2>log | tail -1)"
