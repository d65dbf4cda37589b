# SPDX-License-Identifier: Apache-2.0
"""The meanings of the events that the client logs in applications."""

from collections.abc import Mapping
from typing import Final

CLIENT_EVENTS: Final[Mapping[str, str]] = {
    "tls.unverified": "A client has trusted certificates, but does not use them to verify the "
    "servers' certificates; `advice` names the setting.",
    "trace.dropped": "There were more traces than could be sent, so some were dropped; no messages "
    "were lost.",
    "trace.unsent": "A broker did not accept traces, which are lost; their messages are not.",
    "callback.abandoned": "`close` or a wait returned while `running_count` calls to the function "
    "given to `callback` were still running: they did not stop when they were cancelled.",
    "callback.failed": "The function given to `callback` raised an exception, or on_revoked took "
    "over a minute.",
    "client.unregister_failed": "The client could not tell a broker that it is leaving; the "
    "broker will notice the closed connection.",
    "consumer.undrained": "`close` stopped waiting after `drain_ms` although `running_count` "
    "calls of the listener were still running; their messages are redelivered.",
    "delivery.failed": "The application's own offset store raised an exception; the queue "
    "continues after a pause.",
    "hook.failed": "A hook of the application raised an exception; the message is processed "
    "nevertheless.",
    "broker.unreachable": "A broker does not answer heartbeats. The client tries again every "
    "second; failures until then are logged at debug level and counted in `failed_count`. The "
    "event is repeated every 30 s, and `broker.reachable` follows when the broker answers again.",
    "client_id.duplicated": "Another member of the group has the same client id, usually because "
    "two processes on one host have the same `instance_name`: both receive the messages of the "
    "same queues, and some queues are not consumed. The event is logged after "
    "`rebalance_interval_ms`, because the broker may still list this member's own old connection, "
    "and is repeated at most once a minute.",
    "heartbeat.failed": "A broker refused a heartbeat; the client sends the next one at its usual "
    "time.",
    "listener.abandoned": "`close` returned while `running_count` calls to the listener were still "
    "running: they did not stop when they were cancelled after `drain_ms`. Their messages are "
    "redelivered.",
    "listener.failed": "The listener raised an exception, or returned something that is not a "
    "result; the message is redelivered. The first failure of a kind is logged with its traceback; "
    "further ones are only counted.",
    "lock.failed": "A broker did not answer the lock request of an orderly group; the client asks "
    "again.",
    "locks.lost": "Another member has locked queues; their messages that this member holds are "
    "dropped.",
    "message.damaged": "The body of a message does not match its CRC; the application gets the "
    "message nevertheless, as in RocketMQ.",
    "message.dead": "A message went to the dead-letter topic of its group, because the listener "
    "gave up on it or it was redelivered too often; `error` says why its last delivery failed.",
    "message.dropped": "The listener of a broadcasting consumer failed on a message, which is not "
    "delivered again.",
    "message.late": "The listener kept a message for too long, so the client sent the message "
    "back to the broker.",
    "message.stuck": "No broker accepted a message that the client sent back; the client delivers "
    "it to the listener again.",
    "messages.missing": "The broker left out messages, although the subscription has no filter: "
    "their records are damaged, or another member of the group has a different subscription.",
    "message.unreadable": "The body of a message cannot be decompressed; push consumers send such "
    "a message back.",
    "message.unreturned": "A message could not be sent back to its broker; the client tries "
    "another way.",
    "namesrv.list_kept": "The address server returned no list; the client keeps the known name "
    "servers.",
    "namesrv.unreachable": "No name server answers; `error` gives each address and the reason. The "
    "client tries again. The event is repeated at most once every 30 s.",
    "offset.given_up": "Queues were released before their last offsets, `offsets`, were stored: "
    "their next owner receives the messages after the committed offsets again.",
    "offset.moved": "The broker has no message at the requested offset; the consumer continues at "
    "the offset that the broker gave. `skipped_count` messages are not consumed; `advice` names "
    "the cause and, if they still exist, the command to consume them.",
    "offset.unknown": "The first offset of a queue is not known yet; the client tries again.",
    "offsets.reset_refused": "A broker tried to reset the offsets of queues of `broker`, which is "
    "another one; nothing was reset. Check who registers brokers at the name servers.",
    "offsets.restored": "The offset file of a broadcasting group is damaged or missing, for the "
    "reason in `error`; the consumer continues at the offsets of its backup, `offsets.json.bak`.",
    "offsets.shared": "Another process with the same client id writes the offset file of this "
    "broadcasting group; the process that stops last determines where both continue.",
    "offset.unsaved": "Committed offsets did not reach the broker; the client tries again.",
    "producer.undrained": "`close` stopped waiting although `running_count` sends and requests "
    "were still running.",
    "pull.failed": "A pull at `queue_offset` failed; the client tries again after a pause. If the "
    "record there is corrupt, `error` says what to do.",
    "queues.locked_elsewhere": "Orderly consumption: another member has held the locks of these "
    "queues for 5 s, so they wait. It releases them when it stops; after a kill, the broker frees "
    "them 60 s after their last renewal.",
    "queues.undrained": "Queues were revoked while the listener was still processing their "
    "messages.",
    "subscription.doubtful": "A filter is probably a mistake: it matches no messages, or not "
    "the intended ones. `advice` shows what to write.",
    "subscription.refused": "A broker refuses the SQL92 condition of a running consumer, which "
    "receives no message of the topic until the subscription is corrected. `error` gives the "
    "reason.",
    "sync.slow": "Three syncs of the log in a row, which sends waited for, took 100 ms or longer; "
    "`elapsed_ms` is the duration of the last one. Sends take as long as the disk; all other "
    "requests are served. The event is repeated at most once a minute.",
    "sync.postponed": "A file of the log could not be opened for a sync, because too many files "
    "are open; nothing is lost, and the sync is repeated. Raise the limit of open files.",
    "strategy.failed": "An allocation strategy raised an exception; the assignment of queues "
    "stays unchanged.",
    "rebalance.failed": "The queues of a topic could not be assigned; the client tries again.",
    "transaction.check_failed": "The check function raised an exception; the broker will ask "
    "again.",
    "transaction.failed": "A local transaction raised an exception, which its caller gets. "
    "`state` is what the broker is told: the message is rolled back, or the broker will ask.",
    "transaction.unchecked": (
        "A check from a broker was dropped, for the reason in `error`; the broker repeats it in "
        "the next round."
    ),
    "transaction.untold": "The outcome of a transaction did not reach the broker, which will ask "
    "about it.",
    "unlock.failed": "A broker could not be told that queues are unlocked; their locks expire.",
    "route.unknown": "A topic has no route at startup; the client looks it up again.",
}
