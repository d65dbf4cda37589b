# SPDX-License-Identifier: Apache-2.0
"""Topics, transactions and offsets survive failovers."""

import subprocess
import time

from cometmq.peers.e2e import load as loads
from cometmq.peers.e2e.load import transacting

GROUP = "orders"
TOPICS_S = 15
KILL_AFTER_S = 6
TRANSACTIONS_S = 5
CREATE_TOPICS = """
end=$(($(date +%s) + $2))
number=0
while [ $(date +%s) -lt $end ]; do
    number=$((number + 1))
    cometmq topic create "Kept$number" -n "$1" >/dev/null 2>&1 && echo "Kept$number"
done
"""


def fail_over(world):
    """Kill the master, and wait until the group has the next one and is ready."""
    before = world.status()
    world.kill(before["master"])
    world.until_epoch_after(before["epoch"])
    world.until_ready()


def test_topics_created_during_a_failover(ready, report):
    """Each topic whose creation succeeded exists on the next master."""
    command = ["kubectl", "--namespace", ready.mq.name, "exec", loads.POD, "--"]
    command += ["sh", "-c", CREATE_TOPICS, "sh", ready.namesrv, str(TOPICS_S)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as creator:
        time.sleep(KILL_AFTER_S)
        fail_over(ready)
        output, _ = creator.communicate(timeout=120)
    created = output.split()
    ready.until_registered()
    words = ("exec", loads.POD, "--", "cometmq", "topic", "list", "-n", ready.namesrv)
    listed = ready.mq.kubectl(*words).split()
    report.add("topics created during a failover", "created", len(created))
    report.add("topics created during a failover", "lost", len(set(created) - set(listed)), limit=0)
    assert created
    assert set(created) <= set(listed)


def test_transactions_during_a_failover(ready, report):
    """Each half message is committed or rolled back once, by its producer or after a check."""
    with transacting(ready.mq, ready.namesrvs) as transactions:
        time.sleep(TRANSACTIONS_S)
        fail_over(ready)
        time.sleep(TRANSACTIONS_S)
        totals = transactions.finish()
    scenario = "transactions during a failover"
    report.add(scenario, "half messages", totals["stored"])
    wrong = [*totals["missing"], *totals["unexpected"], *totals["twice"]]
    report.add(scenario, "missing, unexpected or resolved twice", len(wrong), limit=0)
    assert totals["checked"] > 0
    assert wrong == [], totals
