# SPDX-License-Identifier: Apache-2.0
"""`python -m cometmq.peers.scale.operator CLUSTER`: the operator as its container runs it.

It differs from `cometmq.operator.__main__` in two arguments only: the API server, which a pod finds
at fixed paths and a fixed name, and the addresses of brokers, which a pod gets from the DNS.
"""

import sys
from functools import partial

from cometmq.operator.app import OperatorApp
from cometmq.operator.broker_groups.group_elector import Addresses
from cometmq.operator.settings import PREFIX, OperatorSettings
from cometmq.peers.scale.cluster import given_cluster
from cometmq.runtime import logging
from cometmq.runtime.program import configured_program
from cometmq.runtime.service import Stop, run
from cometmq.runtime.settings import load

log = logging.get("operator")


async def main(stop: Stop) -> None:
    cluster = given_cluster()
    settings = load(OperatorSettings, prefix=PREFIX)
    addresses = Addresses(
        control=lambda group, one: cluster.control(group.name, one),
        main=lambda group, one: cluster.main(group.name, one),
    )
    build = partial(OperatorApp, settings, server=cluster.server(), addresses=addresses)
    await configured_program(build, settings, log=log)(stop)


if __name__ == "__main__":
    logging.configure()
    sys.exit(run(main, log=log, freezes=False))
