# SPDX-License-Identifier: Apache-2.0
"""The meaning of each event at warning or error; a test requires a sentence for each."""

from collections.abc import Mapping
from typing import Final

MEANINGS: Final[Mapping[str, str]] = {
    # programs
    "program.failed": "The program ends with status 1 after an unexpected error.",
    "program.killed": "A second signal, a second after the first or later, ended the program "
    "before it had stopped in order.",
    "settings.ineffective": "These settings have no effect, whatever their values; the reason of "
    "each follows.",
    "address.foreign": "This machine does not have the address of `standalone --host`, to which "
    "clients are sent: correct behind NAT or a mapped port, else a mistake.",
    "settings.overruled": "These settings of the file, and variables, have no effect in `cometmq "
    "standalone`; `use` has the option that sets each.",
    "settings.unknown": "These keys of the file are unknown; they are kept for tools. "
    "`did_you_mean` lists the settings that a misspelled key is close to.",
    "task.ended": "A background task that should run until the stop has ended.",
    "task.failed": "A background step failed; unless `fatal`, it runs again after its interval.",
    # connections
    "certificate.unreadable": "Changed TLS files cannot be read; the old certificate stays in use.",
    "connection.overflowed": "Closed: the peer did not read, and its pending answers exceeded the "
    "memory limit.",
    "connections.paused": "All unsent output exceeded writeBufferTotalBytes: the connections with "
    "the most are not served until they have read, and are closed if they do not.",
    "connection.refused": "Closed: an invalid frame, TLS other than configured, or too many "
    "connections.",
    "connection.stalled": "Closed: the peer did not read its pending answers in time.",
    "groups.unmeasured": "The lag of groups could not be read from disk; retried at the next "
    "interval.",
    "lane.failed": "The native message path has a bug: all sends take the path in Python from now"
    " on; please report it.",
    "handler.failed": "A request was answered with code 1 because of a bug; please report it.",
    # name server
    "broker.address_replaced": "A broker registered with the name and id of another live address, "
    "`replaced`, and took its place in the routes. If both are running, give one another "
    "`brokerName`.",
    "broker.name_taken": "At its start a broker found its name and id registered for another "
    "address, `holder`, and takes its place in the routes. If both are running, give one another "
    "`brokerName`.",
    "broker.disconnected": "A broker's connection ended; its routes are gone.",
    "broker.expired": "A broker was silent too long; its routes are gone.",
    # txn-checker
    "broker.refused": "The txn-checker follows 1,000 brokers at most, and none named like a path.",
    "broker.unfollowed": "The txn-checker failed for one broker; it tries again, others go on.",
    "brokers.unknown": "No name server told the txn-checker of masters; the known ones stay.",
    "progress.uncommitted": "At its stop the txn-checker could not tell a broker how far it is.",
    "queues.replaced": "A broker lost half or op messages that were read: all is read again.",
    "topic.unknown": "A consumer has subscribed to a topic that no broker has; looked up again.",
    "transaction.refused": "A broker could not ask about a transaction: next round again.",
    "transaction.set_aside": "Nobody knew how a transaction ended: see TRANS_CHECK_MAX_TIME_TOPIC.",
    "transactions.unrecalled": "A broker may store the end of a transaction twice after its start.",
    # store
    "cleaning.failed": "A step of retention failed; the next round retries it.",
    "disk.filling": "Above diskMaxUsedSpaceRatio: expired files are deleted at any hour.",
    "disk.full": "Above diskSpaceWarningLevelRatio: sends are refused.",
    "disk.freed": "Below diskSpaceWarningLevelRatio again: sends are accepted.",
    "file.create_failed": "The next log file could not be created ahead; retried each second.",
    "file.padded": "The newest file was shorter than configured and was extended to its full size.",
    "log.truncated": "Recovery truncated the log: the removed part was never confirmed as flushed.",
    "log.write_failed": "The log could not be written: sends are refused until a probe succeeds.",
    "queues.rebuilt": "Consume queues had lost entries and were rebuilt from the log.",
    "queues.write_failed": "Consume queues or the index could not be written: sends are refused "
    "meanwhile.",
    "read.failed": "A read from disk failed; its request was answered with code 1.",
    "log.damaged": "Bytes of the log differ from their checksum or cannot be read. `messages` are "
    "gone, unless the file is restored; pulls skip them.",
    "scrub.failed": "The log could not be compared with its checksums; tried again.",
    "scrub.unsaved": "The comparison of the log with its checksums begins again after a restart.",
    "records.damaged": "A pull met unreadable records and skipped them.",
    "record.dropped": "Recovery dropped the last record: its end was never written.",
    "store.failed": "An fsync failed: sends are refused until the broker is restarted.",
    "store.job_failed": "Background work on the disk failed; the event of that part has the "
    "consequence.",
    # broker
    "account.repeated": "An access key is in two files of accounts; the first one is used.",
    "accounts.missing": "Access control is on without any account: every request is refused, and "
    "`/readyz` fails.",
    "accounts.unreadable": "Changed files of accounts are invalid; the previous accounts stay in "
    "use.",
    "client.expired": "A client sent no heartbeat for 120 s; its connection was closed.",
    "config.save_failed": "A table (topics, offsets, KV config) was not saved; brokers retry.",
    "delay.record_missing": "A delayed message is no longer in the log; it cannot be delivered.",
    "delay.topic_missing": "A delayed message does not name its real topic; it was skipped.",
    "delay.unreadable": "A level's messages could not be read from disk; retried, other levels go "
    "on.",
    "journal.damaged": "The journal of the tables has an entry that cannot be used; later ones "
    "were left out, so offsets may be as old as their last save.",
    "journal.entry_too_long": "Changes with names of megabytes were not journaled; the next save "
    "has them.",
    "journal.left_out": "Entries were not applied to a table: another program wrote its file, or "
    "the file is newer.",
    "journal.not_deleted": "A full file of the journal could not be deleted; tried again after the "
    "next save.",
    "journal.sync_failed": "The journal was not synced; all tables are saved instead.",
    "journal.write_failed": "The journal was not written: until it is, a kill costs the offsets "
    "since their last save. Retried each second.",
    "client_call.failed": "A client did not answer a request of a tool or broker; see `reason`.",
    "reply.not_stored": "A reply was pushed to its requester, but the store refused it.",
    "reply.not_taken": "A requester did not accept its reply; the replier got an error.",
    "subscription.mismatched": "Members of one group have different subscriptions and miss "
    "messages: give them equal subscriptions, or groups of their own.",
    "group.creation_refused": "The limit of automatically created groups is reached; a client may "
    "be inventing names.",
    "filter.invalid": "A group subscribed with an invalid SQL expression; its pulls are refused.",
    "filter.refused": "A group's SQL filter was not stored: the limit of filters is reached.",
    "group.disabled": "disableConsumeIfConsumerReadSlowly: the group may not consume any more.",
    "namesrv.lookup_failed": "A name in namesrvAddr could not be resolved; its last addresses "
    "stay in use.",
    "namesrv.lost": "Registration with a name server failed; retried until it succeeds.",
    "namesrv.unregister_failed": "A name server could not be notified of the stop; it will notice "
    "the closed connection.",
    "topic.adopted": "A topic had messages but no configuration, as after a crash: it was created "
    "again.",
    "topic.creation_refused": "A send named an unknown topic that may not be created.",
    # client
    "trace.dropped": "More traces than could be sent: some are left out, no message is.",
    "trace.unsent": "A broker did not take traces; they are lost, their messages are not.",
    "callback.failed": "The function given to `callback` raised, or on_revoked took over a minute.",
    "client.unregister_failed": "A broker was not told that the client leaves; it will see it.",
    "consumer.undrained": "`close` gave up waiting for `running_count` calls of the listener; "
    "their messages are redelivered. The option drain_ms has the time.",
    "delivery.failed": "A foreign store of offsets raised; the queue goes on after a pause.",
    "hook.failed": "A hook of the application raised; the message goes its way all the same.",
    "broker.unreachable": "A broker does not answer heartbeats. The client tries again each "
    "second; steps that fail meanwhile are logged at debug and counted in `failed_count`. Repeated "
    "every 30 s, and followed by `broker.reachable`.",
    "heartbeat.failed": "A broker refused the heartbeat; the next one comes in time.",
    "listener.failed": "The listener raised or returned something else than a result; the message "
    "is redelivered. The first failure of a kind has its traceback, then failures are counted.",
    "lock.failed": "A broker did not answer about the locks of an orderly group; asked again.",
    "locks.lost": "Another member has locked queues; what was held of them is dropped.",
    "message.dead": "A message went to the dead-letter topic of its group: the listener gave it "
    "up, or it was redelivered too often.",
    "message.dropped": "A broadcasting consumer failed with a message, and gets it no more.",
    "message.late": "The listener kept a message for too long; the broker has it again.",
    "message.stuck": "A message could be given back to no broker; tried again here.",
    "message.unreadable": "A message cannot be unpacked: push consumers give it back.",
    "message.unreturned": "The broker of a message did not take it back; another way is tried.",
    "namesrv.list_kept": "The address server gave no list; the known name servers stay.",
    "namesrv.unreachable": "No name server answers; `error` names each address and the reason. "
    "Tried again. Repeated every 30 s at most.",
    "offset.given_up": "Queues left without their last offsets: messages come again elsewhere.",
    "offset.moved": "The broker has no such offset; reading goes on where it says.",
    "offset.unknown": "The first offset of a queue is not known yet; tried again.",
    "offsets.shared": "Another process with the same client id writes the offset file of this "
    "broadcasting group; the one that stops last decides where both continue.",
    "offset.unsaved": "Committed offsets did not reach the broker; tried again.",
    "producer.undrained": "`close` gave up waiting for `running_count` sends.",
    "pull.failed": "A pull failed; tried again after a pause.",
    "queues.undrained": "Queues went away while their listener still worked.",
    "subscription.doubtful": "A filter is probably a mistake: it matches no message, or "
    "others than meant; `advice` has what to write.",
    "strategy.failed": "An allocation strategy raised; the queues stay as they are.",
    "rebalance.failed": "A topic's queues could not be shared now; tried again.",
    "transaction.check_failed": "A check listener raised: the broker will ask again.",
    "transaction.failed": "A local transaction raised: it stays open, and the broker will ask.",
    "transaction.unchecked": "A broker's question was left to its next round.",
    "transaction.untold": "A broker was not told how a transaction ended: it will ask.",
    "unlock.failed": "A broker was not told that queues are free; their locks run out.",
    "route.unknown": "A topic has no route at the start; looked up again.",
    # replication
    "replica.unfit": "The master's log does not continue this slave's, for `reason`: a person must "
    "act ([runbook](../runbooks/slave-does-not-follow.md)). Logged once for each reason and text.",
    "replica.lost": "The connection to the master ended; the slave tries again.",
    "replica.failed": "The slave cannot connect to its master, or its own disk refuses the log; "
    "tried again.",
    "replica.copy_failed": "A slave could not copy a table of its master; tried again with the "
    "next round.",
    "slave.refused": "A slave's log does not fit this master's, for `reason`, or something else "
    "connects to haListenPort ([runbook](../runbooks/slave-does-not-follow.md)). Logged once for "
    "each host, reason and text.",
    "slave.silent": "A connection to haListenPort was silent for haHousekeepingInterval and is "
    "closed.",
    "slave.turned_away": "A connection to haListenPort was above haConnectionsMax.",
    "slave.log_unreadable": "This broker cannot read its own log for a slave: a failing disk or a "
    "damaged record; run `cometmq store verify`.",
}
