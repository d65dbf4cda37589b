# SPDX-License-Identifier: Apache-2.0
"""What the events mean that call for attention; a test demands a sentence for each of them."""

from collections.abc import Mapping
from typing import Final

MEANINGS: Final[Mapping[str, str]] = {
    # programs
    "program.failed": "The program ends with status 1: an error that nobody expected.",
    "program.killed": "A second signal ended the program before it had stopped in order.",
    "settings.ineffective": "These settings ask for what is not built yet; clients that use it "
    "are refused.",
    "settings.unknown": "These keys of the file mean nothing here; they are kept for tools.",
    "task.ended": "A background task that should run until the stop has ended.",
    "task.failed": "A background step failed; unless `fatal`, it runs again next time.",
    # connections
    "certificate.unreadable": "Changed TLS files cannot be read; the old certificate stays.",
    "connection.overflowed": "Closed: the peer did not read, and its answers took too much memory.",
    "connection.refused": "Closed: no frame of the protocol, TLS not as configured, or too many.",
    "connection.stalled": "Closed: answers waited, and the peer read nothing for too long.",
    "groups.unmeasured": "The disk did not say how far behind groups are; tried again later.",
    "handler.failed": "A request was answered with code 1 because of a bug; please report it.",
    # name server
    "broker.disconnected": "A broker's connection ended; its routes are gone.",
    "broker.expired": "A broker was silent too long; its routes are gone.",
    "namesrv_file.failed": "Key-value table or settings could not be saved; the request failed.",
    # store
    "cleaning.failed": "A step of retention failed; the next round tries again.",
    "disk.filling": "Above diskMaxUsedSpaceRatio: expired files go at any hour.",
    "disk.full": "Above diskSpaceWarningLevelRatio: sends are refused.",
    "disk.freed": "Below diskSpaceWarningLevelRatio again: sends are taken.",
    "file.create_failed": "The next log file could not be made ahead; tried again each second.",
    "file.padded": "The newest file was shorter than configured and got its full size.",
    "log.truncated": "Recovery cut the log: what followed had never been confirmed as flushed.",
    "log.write_failed": "The log could not be written: sends are refused until a probe succeeds.",
    "queues.rebuilt": "Queues had lost entries and were built again from the log.",
    "queues.write_failed": "Queues or index could not be written: sends are refused meanwhile.",
    "read.failed": "A read from disk failed; its request was answered with code 1.",
    "records.damaged": "A pull met records that cannot be read, and went on behind them.",
    "record.dropped": "Recovery dropped the last record: its end was never written.",
    "store.failed": "An fsync failed: no more sends until the broker is restarted.",
    "store.job_failed": "Work on the disk failed; the event of its part says what follows.",
    # broker
    "client.expired": "A client sent no heartbeat for 120 s; its connection was closed.",
    "config.save_failed": "A table (topics, groups, offsets) was not saved; tried again.",
    "delay.record_missing": "A delayed message is no longer in the log; it cannot be delivered.",
    "delay.topic_missing": "A delayed message does not say where it belongs; it was passed over.",
    "delay.unreadable": "The disk cannot read a level's messages; tried again, other levels go on.",
    "client_call.failed": "A client did not do what a tool or broker asked of it; see `reason`.",
    "reply.not_stored": "A reply went to its requester, but the store did not take it.",
    "reply.not_taken": "A requester did not take its reply; the replier was told.",
    "subscription.mismatched": "Members of one group want different things and miss messages: "
    "give them equal subscriptions, or groups of their own.",
    "group.creation_refused": "As many groups came by themselves as may; somebody invents names.",
    "group.disabled": "disableConsumeIfConsumerReadSlowly: the group may not consume any more.",
    "namesrv.lookup_failed": "A name in namesrvAddr has no address now; the known ones are used.",
    "namesrv.lost": "Registration with a name server failed; tried again until it succeeds.",
    "namesrv.unregister_failed": "A name server was not told of the stop; it will see it later.",
    "topic.adopted": "Messages without topic configuration, as after a crash: configured anew.",
    "topic.creation_refused": "A send to an unknown topic that may not be created.",
    # client
    "client.unregister_failed": "A broker was not told that the client leaves; it will see it.",
    "consumer.undrained": "`close` gave up waiting for calls of the listener.",
    "heartbeat.failed": "A broker did not take the heartbeat; the next one comes in time.",
    "listener.failed": "The listener raised; the message comes again.",
    "message.late": "The listener kept a message for too long; the broker has it again.",
    "message.stuck": "A message could be given back to no broker; tried again here.",
    "message.unreadable": "A message cannot be unpacked: push consumers give it back.",
    "message.unreturned": "The broker of a message did not take it back; another way is tried.",
    "namesrv.list_kept": "The address server gave no list; the known name servers stay.",
    "namesrv.unreachable": "A producer found no name server or broker at its start.",
    "offset.moved": "The broker has no such offset; reading goes on where it says.",
    "offset.unknown": "The first offset of a queue is not known yet; tried again.",
    "offset.unsaved": "Committed offsets did not reach the broker; they go with the next round.",
    "producer.undrained": "`close` gave up waiting for sends.",
    "pull.failed": "A pull failed; tried again after a pause.",
    "strategy.failed": "An allocation strategy raised; the queues stay as they are.",
    "rebalance.failed": "A topic's queues could not be shared now; tried again.",
    "route.unknown": "A topic has no route at the start; looked up again.",
}
