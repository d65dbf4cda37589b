# SPDX-License-Identifier: Apache-2.0
"""Every counter of a remoting server is exported."""

import msgspec

from cometmq.remoting.transport.stats import TransportStats
from cometmq.runtime.incremental import finish
from cometmq.runtime.metrics import Registry, StatsCollector
from cometmq.runtime.metrics.transport import TRANSPORT_FAMILIES
from cometmq.testing.runtime.pages import render


def test_each_counter_of_the_server_has_its_sample():
    names = [field.name for field in msgspec.structs.fields(TransportStats)]
    stats = TransportStats(**{name: 1000 + index for index, name in enumerate(names)})
    registry = Registry(has_process_metrics=False)
    registry.add(StatsCollector(TRANSPORT_FAMILIES, lambda: stats, {"server": "namesrv"}))
    text = render(finish(registry.collect()))
    unseen = {name for name in names if f" {float(getattr(stats, name))}\n" not in text}
    assert unseen == set()
    assert 'cometmq_connections_closed_total{reason="idle",server="namesrv"}' in text or (
        'cometmq_connections_closed_total{server="namesrv",reason="idle"}' in text
    )
