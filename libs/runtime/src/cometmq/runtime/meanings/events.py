# SPDX-License-Identifier: Apache-2.0
"""The meaning of each event logged as warning or error; a test checks that none is missing."""

from collections.abc import Mapping
from typing import Final

from cometmq.runtime.meanings.client_events import CLIENT_EVENTS

MEANINGS: Final[Mapping[str, str]] = {
    # further brokers of standalone
    "sibling.ended": "A further broker of standalone has ended; it is started again.",
    "sibling.restarted": "A further broker of standalone runs again.",
    "sibling.killed": "A further broker of standalone did not stop within a minute.",
    # broker groups with failover
    "in_sync.insufficient": "Fewer than minInSync copies are in sync: sends are refused "
    "with code 14 until one returns.",
    "in_sync.sufficient": "Enough copies are in sync again; sends are accepted.",
    "member.master_unknown": "The record names a master that groupMembers does not contain.",
    "member.store_failed": "The replication stream of a broker group could not write to the store "
    "or to a file; a restart is needed.",
    "in_sync.changed": "The in-sync set of a broker group has changed; the numbers are brokerIds.",
    "hand_over.failed": "A master of a broker group could not hand over its role, and remains the "
    "master. If it was stopping, a failover follows.",
    "member.failed": "A member of a broker group could not perform a step and has stopped "
    "taking part.",
    "member.recovered": "A member of a broker group whose state did not fit on the disk has saved "
    "it, and takes part again.",
    "member.epoch_unrecorded": "A follower, a master or another broker has named an epoch that the "
    "record does not have, also after a second read. It changes nothing; logged once a minute.",
    "role_hook.failed": "The program of roleHook failed, did not end in time or cannot be run; it "
    "is run again every second until it succeeds.",
    "master.cut_off": "A master has heard nothing from its copies for so long that they should "
    "have left the in-sync set, but it could not write the record. Another broker is probably the "
    "master now. It closes the connections of clients, so that they connect to groupAddress again.",
    "frozen_master.unwatched": "frozenMasterMills has no effect: the system cannot end this "
    "process if it stands still.",
    "member.role_changed": "A member of a broker group has a new role; `cause` is the event "
    "that led to it.",
    "record.reachable": "The consensus record of the broker group can be read again.",
    "wheel.unnoted": "The broker has taken over RocketMQ 5's pending timer messages, but could not "
    "note this in RocketMQ 5's own files: if that opens the store again, it delivers them, too. "
    "Remove timerwheel, timerlog and config/timercheck before.",
    # programs
    "program.failed": "The program ends with status 1 after an unexpected error.",
    "program.killed": "A second signal, at least a second after the first, ended the program "
    "before it had shut down cleanly.",
    "settings.ineffective": "These settings have no effect, whatever their values; the event "
    "gives the reason for each setting.",
    "address.foreign": "The address given with `standalone --host`, which clients connect to, is "
    "not an address of this machine. This is correct behind NAT or a mapped port, and a mistake "
    "otherwise.",
    "settings.overruled": "Options of `cometmq standalone` override these settings from the file "
    "and from environment variables; `use` names the option.",
    "settings.misspelt": (
        "Keys of the file that are probably mistyped, each with the setting that it resembles "
        "(`did_you_mean`), and lines without `=`, as FILE:LINE (`no_settings`). They have no "
        "effect. Logged after startup, so that it is noticed."
    ),
    "settings.repeated": "The file gives these settings more than once, at these places; the last "
    "value counts, as in RocketMQ.",
    "settings.unsaved": "A command on the control port changed settings, but the file cannot be "
    "written, as in a pod: the changes apply until the broker restarts.",
    "settings.unknown": "These names in the file are unknown settings; they are kept for tools. "
    "`did_you_mean` lists the settings that misspelt names resemble; `no_settings` lists the lines "
    "without `=`.",
    "variables.unread": "No program reads these `COMETMQ_...` environment variables; "
    "`did_you_mean` gives the name that each one resembles. Variables that Kubernetes sets for "
    "services are left out. Logged before and after startup.",
    "task.cancelled": "Code that a background task called has cancelled the task; if it should run "
    "until the program stops, it starts again after a second.",
    "task.ended": "A background task ended although it should run until the program stops.",
    "task.failed": "A step of a background task failed; unless `fatal`, the task runs again after "
    "its interval.",
    # connections
    "certificate.expired": "The TLS certificate of this program has expired; it stays in use until "
    "its file changes, but peers that verify it refuse the connection.",
    "certificate.unaccelerated": "OpenSSL serves TLS connections, with more processor time than "
    "native code, because native code cannot use the certificate or the key.",
    "certificate.unreadable": "Changed TLS files cannot be read; the old certificate stays in use.",
    "connection.incomplete": "A connection was closed: the peer stopped in the middle of an "
    "answer, and a request timed out behind it. The next request connects anew.",
    "connection.overflowed": "A connection was closed: the peer did not read, and its pending "
    "answers exceeded the memory limit.",
    "connections.paused": "The unsent output of all connections exceeded writeBufferTotalBytes. "
    "The connections with the most output are paused until their peers have read, and closed if "
    "they do not.",
    "connection.refused": "A connection was closed: it sent an invalid frame, spoke HTTP (as gRPC "
    "clients of RocketMQ 5 do), did not use TLS as configured, did not complete its TLS handshake "
    "within the limits, or had to make room because there were too many connections.",
    "connection.slowed": "A server sends its client so many requests that its connection is read "
    "slowly; the client's other connections are not affected.",
    "connection.stalled": "A connection was closed: the peer did not read its pending answers in "
    "time.",
    "groups.unmeasured": "The lag of consumer groups could not be read from disk; the broker "
    "tries again at the next interval.",
    "native.outdated": "The installed cometmq-accel was built from different sources than this "
    "broker, so the broker handles all messages in Python.",
    "native.failed": "The native code has a bug; please report it. Until the restart, Python does "
    "the work of this `part`; `lane` is the path of messages.",
    "handler.failed": "A request was answered with code 1 because of a bug; please report it.",
    "answer.too_large": "An answer was larger than a frame may be, so code 1 was sent instead; "
    "`code` is the request's.",
    # name server
    "broker.address_replaced": "A broker registered with the name and id of a live broker at "
    "another address, `replaced`, and took its place in the routes. If both are running, give one "
    "of them a different `brokerName`.",
    "limit.reached": (
        "A peer asked for more than a limit allows, and was refused; logged at most every 10 s for"
        " each limit. `detail` says how full the table is; [limits](limits.md) lists all limits."
    ),
    "broker.listed": "A name server lists the broker again, after `broker.unlisted`.",
    "broker.unlisted": (
        "No name server lists the broker, so clients cannot find it; `reason` says what each of"
        " them answered. The broker is not ready, and tries again at least every 2 s."
    ),
    "broker.displaced": (
        "Another broker, `holder`, has registered with the name and id of this broker, which "
        "registers again at once. If both are running, give one of them a different `brokerName`."
    ),
    "broker.id_ignored": "The `brokerId` of a master is not used: it is 0, as in RocketMQ. A slave "
    "needs `brokerRole=SLAVE`.",
    "broker.name_taken": (
        "A running broker, `holder`, has the name and id of this broker, which therefore does not "
        "register; if it was starting, it exits with status 2. Give one of the two a different "
        "`brokerName`."
    ),
    "broker.name_taken_over": "Because of `takeOverName`, this broker takes the place of `holder` "
    "in the routes.",
    "broker.disconnected": (
        "A broker's connection ended, and its routes were removed. The master of a group with "
        "failover remains in the routes for `lostMasterKeepMs`, or until the next master registers."
    ),
    "broker.deposed": "A deposed master tried to register once more and was refused, as can happen "
    "in a switchover. Further attempts are logged as `broker.stale`.",
    "registration.incomplete": (
        "A name server lacks topics that this broker registered, or lists others, because somebody "
        "deleted or registered topics there; the broker registers all its topics again."
    ),
    "registration.lost": (
        "A name server that accepted this broker no longer lists it, although their connection is "
        "open: somebody removed it. The broker registers again at once. If this repeats, use "
        "`aclEnable` at the name server."
    ),
    "registration.refused": "A name server refused the registration of a master that has just been "
    "deposed, as can happen in a switchover; after 3 s, this is logged as `namesrv.lost`.",
    "broker.stale": (
        "A deposed master, or a slave of one, tried to register; its group has a later epoch. "
        "That broker should soon notice that it was deposed; if the event recurs, look at its log."
    ),
    "broker.unproven": (
        "A registration, or the end of one, was refused, because its sender does not prove that it "
        "knows the key of its group: a stranger, or a broker whose `groupKeyFile` has none of the "
        "name server's keys. Logged at most once a second."
    ),
    "epoch.implausible": (
        "A registration without a proof was refused, because the group cannot have reached its "
        "epoch: a stranger's, or that of another group of the same name. Logged at most once a "
        "second."
    ),
    "epoch.contested": (
        "A broker was refused for its epoch and kept registering, so it was accepted. For ten "
        "minutes, the latest registration of the group counts, as in RocketMQ. Two brokers claim "
        "to be its master, and neither proves it."
    ),
    "group_key.written": "The operator has written the Secret with a group's key: it was missing, "
    "or a replacement has reached the step `step`.",
    "group_key.waiting": "The replacement of a group's key waits until these pods report the keys "
    "of its present step; kubelets update the files of Secrets within about two minutes.",
    "group_key.unusable": "A changed key file cannot be used; the previous keys stay in use.",
    "broker.expired": "A broker was silent for too long, and its routes were removed.",
    "store.discarded": "A slave has moved its store aside, as ordered; at its next start it copies "
    "everything from its master.",
    "store.kept": "A slave was ordered to discard its store, but had a different role when it "
    "stopped.",
    "control.unprotected": "The control port is open to other machines and requires no "
    "certificate: any client that reaches it can depose a master.",
    "control.unproven": "A call to the control port was refused, because its caller does not prove "
    "that it knows the group's key: a stranger, or an elector without the brokers' `groupKeyFile`. "
    "Logged at most once in ten seconds.",
    "control.failed": "An order through the control API failed because of a bug; please report it.",
    # elector
    "group.blocked": "The elector can do nothing for the group until a condition is met; `text` "
    "names it.",
    "loss.accepted": "A person has accepted that messages may be lost; the elector may create the "
    "record once, with an epoch above `epoch`.",
    "master.lost": "The master named in the record is considered lost; `cause` says why. An "
    "election follows if a member of the in-sync set answers.",
    "member.silent": "A broker of the group does not answer on its control port, or another broker "
    "answers there.",
    "member.unlisted": (
        "The record names brokers that are missing from the elector's settings, so the elector can "
        "neither query them nor send them orders."
    ),
    "order.failed": "A broker refused an order or did not answer; the elector makes a new "
    "decision.",
    "record.unreachable": (
        "An elector or a broker cannot read the group's record: no election happens until it can. "
        "A master whose slaves answer continues."
    ),
    "record.write_unknown": "A write of the record got no answer; the record is read again before "
    "anything else is done.",
    # exporter
    "broker.unanswered": "The exporter cannot list the groups or members of this broker; it tries "
    "again in each round. The figures of consumers that are connected to this broker only are "
    "missing.",
    "brokers.unlisted": "No name server gave the exporter the list of brokers; figures are missing "
    "until one does.",
    "limits.exceeded": "The exporter left out groups, clients, late clients (not asked within "
    "`collectTimeout`) or rows: see `groupsMax`, `clientsMax`, `collectTimeout`, `metricsRowsMax`.",
    "members.unanswered": "Members of this group did not report their figures; `client` and "
    "`error` belong to the first one. Clients that do not know the request never answer.",
    # console
    "console.ended": "The process of the suite's console has ended (`status`); it starts again when"
    " a browser connects.",
    "console.killed": "The process of the suite's console did not end in time and was killed.",
    "history.damaged": "The file of the console's history cannot be read; it is put aside under "
    "the name in `kept`, and a new history begins.",
    "history.missing": "The disk of the console's folder is full: there is no history until a "
    "point can be stored again.",
    "token.missing": "The console cannot write the file of its token; nobody can log in with it "
    "until the console is restarted with free space.",
    "login.refused": "Somebody could not log in to the console; many of them from one address are "
    "an attack, which is slowed down.",
    "login.revoked": "A session at the console has ended, because its account, its token or its "
    "user at the OpenID provider is not accepted any more: it was removed, or has another secret.",
    "tokens.unusable": "The file of the console's tokens has changed, but cannot be used; the "
    "tokens before stay valid.",
    "request.failed": "The console has a fault: a page ended with an error; please report it.",
    # operator
    "backlog.unknown": "The operator cannot get the number of unread messages from the master; the "
    "deletion of the group waits.",
    "drain.blocked": "A broker of a group that is being deleted cannot be made read-only; the "
    "deletion waits.",
    "event.lost": "An Event could not be written; nothing depends on it.",
    "master_service.moved": "The Service of a broker group's master leads to this pod now.",
    "master_service.unmoved": "The EndpointSlice of a broker group's master could not be written; "
    "the operator tries again after 0.5 s. Clients reach the next master only afterwards.",
    "object.unattended": "Reconciling a BrokerGroup, Topic or ConsumerGroup failed because the API "
    "server did not answer or refused the request, or because the operator cannot read the spec; "
    "the operator tries again after 2 s. Failover continues.",
    "secret.unusable": "A Secret with the certificate of a group's brokers is missing or cannot be "
    "used; the operator reaches the brokers as before. A condition of the group says what to do.",
    "kopf.ended": "The part of the operator that watches objects has ended with this error; it "
    "begins again after 1 s. Until then, changes of objects are noticed at the next periodic pass "
    "only. Failover continues.",
    "leader.lost": "Another operator may act now; this one becomes a standby.",
    "leader.unknown": "The Lease that decides which operator acts cannot be read or written.",
    # txn-checker
    "broker.refused": "The txn-checker does not follow this broker: it follows at most 1,000 "
    "brokers, and none whose name looks like a path.",
    "broker.unfollowed": "The txn-checker cannot follow this broker. It tries again, every second "
    "if the failure is normal during a failover, and continues to follow the other brokers. The "
    "event is logged again only if the reason changes.",
    "brokers.unknown": "No name server gave the txn-checker the list of masters; it keeps the "
    "masters that it knows.",
    "progress.uncommitted": "The txn-checker could not commit its progress to a broker before it "
    "stopped.",
    "queues.replaced": "A broker lost half or op messages that the txn-checker had read; the "
    "txn-checker reads all messages of this broker again.",
    "topic.unreadable": "A consumer has subscribed to a topic that no broker lets it read.",
    "topic.unknown": "A consumer has subscribed to a topic that no broker has; the client looks "
    "the topic up again.",
    "transaction.refused": "A broker could not ask a producer about a transaction; the "
    "txn-checker asks again in the next round.",
    "transaction.set_aside": "No producer knew how a transaction ended; its half message was "
    "moved to TRANS_CHECK_MAX_TIME_TOPIC.",
    "transactions.unrecalled": "At startup, a broker could not read which transactions had ended, "
    "so it may store the end of a transaction twice.",
    # HTTP port
    "metrics_file.unreadable": "A file whose metrics this program shows for another one could not "
    "be read, so they are missing from this scrape.",
    # store
    "cleaning.failed": "A step of file retention failed; the next round retries it.",
    "disk.filling": "Disk usage is above diskMaxUsedSpaceRatio: expired files are deleted at any "
    "hour.",
    "disk.full": "Disk usage is above diskSpaceWarningLevelRatio: sends are refused.",
    "disk.freed": "Disk usage is below diskSpaceWarningLevelRatio again: sends are accepted.",
    "files.sacrificed": "Disk usage is above diskSpaceCleanForciblyRatio: the oldest files were "
    "deleted before fileReservedTime, so groups that had not read them skip their messages. "
    "`count` and `bytes` cover the time since the previous such event; the event is logged at most "
    "once every ten minutes.",
    "file.create_failed": "The next log file could not be created ahead of time; the broker "
    "retries every second.",
    "file.padded": "The newest file was shorter than the configured size and was extended to it.",
    "log.truncated": "Recovery truncated the log at a record that is incomplete or damaged and had "
    "no checksum yet.",
    "log.shortened": "The log of a slave or of a member of a broker group ends before its synced "
    "end: the disk lost the missing bytes, or someone removed them. The broker gets them from its "
    "master; in a broker group, the store becomes a new copy.",
    "log.files_lost": "The oldest files of the log are missing, but the broker has not deleted "
    "them: someone removed them by hand, or RocketMQ did when it used the store. It is logged at "
    "one start only.",
    "log.write_failed": "The log could not be written; sends are refused until a test write "
    "succeeds.",
    "queue.repaired": "Entries of a queue that had changed on the disk were written again from the "
    "log; readers waited for that, so they get all messages.",
    "queue.unrepaired": "Damaged entries of a queue could not be compared with the log; after "
    "three attempts or 30 s, readers skip these messages.",
    "index.damaged": "Bytes of an index file have changed on the disk, so searches by key may have "
    "lacked messages.",
    "index.repaired": "A damaged index file was rebuilt from the log.",
    "index.unrepaired": "A damaged index file could not be rebuilt from the log; the broker tries "
    "again in the scrubber's next round.",
    "topics.restored": "This broker was the only one that had deleted these topics, or messages of"
    " them, when it stopped being the master; their queues were rebuilt from the log.",
    "floors.damaged": "The file with the first offsets of trimmed queues is damaged; they were "
    "read from the log instead.",
    "offsets.lowered": "Messages were lost from the ends of queues, so the offsets behind the new "
    "ends were lowered: otherwise their groups would skip as many new messages.",
    "queue.file_lost": "A file of a consume queue is missing; the queue is rebuilt from the log.",
    "queues.rebuilt": "Consume queues had lost entries and were rebuilt from the log.",
    "puts.unconfirmed": "The replicas of the broker group are so far behind that sends are refused"
    " until they have caught up.",
    "checksums.failed": "Checksums of new blocks could not be computed; the scrubber tries again.",
    "queues.write_failed": "Consume queues or the index could not be written; sends are refused "
    "until a write succeeds.",
    "read.failed": "A read from disk failed; the request that needed it was answered with code 1.",
    "log.damaged": "Bytes of the log differ from their checksum or cannot be read. The messages "
    "listed in `messages` are lost unless the file is restored, or another member of the broker "
    "group has the bytes (`log.repaired`); pulls skip them. `keys` are as far as they can be read; "
    "`spared_count` messages of the same 64 KiB are intact.",
    "log.repaired": "A damaged block of the log was replaced by the bytes of another member of the "
    "broker group, which fit its checksum; consumers that have not passed its messages get them.",
    "log.unrepaired": "A damaged block of the log could not be replaced: the bytes that another "
    "member of the broker group sent do not fit its checksum, or the disk refused them. The broker "
    "asks again after a minute.",
    "scrub.failed": "The log could not be compared with its checksums; the broker tries again.",
    "scrub.unsaved": "The scrubber could not save its position in the log; after a restart, it "
    "checks part of the log again.",
    "records.damaged": "A pull skipped messages that are damaged in the log, or that it lacks.",
    "record.dropped": "Recovery dropped the last record, because its end was never written.",
    "store.failed": "An fsync failed: sends are refused until the broker is restarted.",
    "store.job_failed": "Background work on the disk failed; another event, from the affected "
    "component, describes the consequence.",
    # broker
    "account.repeated": "Two account files contain the same access key; the first one is used.",
    "accounts.missing": "Access control is on without any account: every request is refused, and "
    "`/readyz` fails.",
    "accounts.misspelt": "An account file has misspelt keys, which have no effect, unknown "
    "permissions, which mean DENY, or values that YAML reads as other numbers; `found` names each "
    "with its account and the most similar valid word.",
    "accounts.unreadable": "Changed account files are invalid; the previous accounts stay in use.",
    "client.expired": "A client sent no heartbeat for 120 s; its connection was closed.",
    "config.save_failed": "A table (topics, offsets, KV config) could not be saved; brokers retry.",
    "message.parked": "A message that was acknowledged cannot be stored where it belongs, for the "
    "given `reason`. It is now in the topic `parked_in`, and messages behind it are not held up. "
    "Logged once a minute for each origin and reason; `count` is the number of messages since.",
    "delay.record_missing": "A delayed message is damaged or no longer in the log, and cannot be "
    "delivered.",
    "delay.level_missing": "Messages wait in a delay level that messageDelayLevel no longer has; "
    "they are delivered once the level is back. Logged at every start.",
    "delay.unreadable": "The messages of a delay level could not be read from disk; the broker "
    "retries, and other levels continue.",
    "journal.damaged": "The journal of the tables is damaged or missing. Later entries were not "
    "applied, so offsets may be as old as the last save.",
    "journal.entry_too_long": "Changes with names of several megabytes were not journaled; the "
    "next save includes them.",
    "table.damaged": "The file of a table could not be read; its backup and the changes in the "
    "journal are used instead. The next save replaces the file.",
    "table.changed": "The file of a table is not as this broker left it: another program or an "
    "operator has changed it, or its bytes have changed on the disk. The file is used as it is.",
    "journal.left_out": "Journal entries were not applied to a table, because another program "
    "wrote the table's file or the file is newer.",
    "journal.not_deleted": "A full journal file could not be deleted; the broker tries again "
    "after the next save.",
    "journal.sync_failed": "The journal could not be synced; all tables are saved instead.",
    "journal.write_failed": "The journal could not be written. If the broker is killed before a "
    "write succeeds, the offsets committed since their last save are lost. The broker retries "
    "every second.",
    "client_call.failed": "A client did not answer a request from a tool or broker; `reason` says "
    "why.",
    "reply.not_stored": "A reply was pushed to its requester, but the store refused it.",
    "reply.not_taken": "A requester did not accept a reply; its sender got an error.",
    "subscription.mismatched": "Members of one group have different subscriptions and miss "
    "messages: give all members the same subscriptions, or give each subscription a separate "
    "group.",
    "group.mixed": "Some members of a consumer group use CLUSTERING and others BROADCASTING, so "
    "messages are missed: give all members the same message model, or move the broadcasting "
    "members to a separate group.",
    "filter.invalid": "A group subscribed with an invalid SQL expression; its pulls are refused.",
    "filter.refused": "The SQL filter of a group was not stored, because the limit of filters is "
    "reached.",
    "group.dead_letters_at_once": "A message at which a consumer of the group failed became a dead "
    "letter at once: the consumer allows no retry (maxReconsumeTimes 0, as Spring Cloud Stream by "
    "default). Logged once for each group.",
    "producers.silent": "Connected producers of the group were asked how transactions ended, and "
    "none has answered. In a Go program, only the first transaction producer does.",
    "group.disabled": "The group may no longer consume (disableConsumeIfConsumerReadSlowly).",
    "namesrv.lookup_failed": "A name in namesrvAddr could not be resolved; its last known "
    "addresses stay in use.",
    "namesrv.lost": "Registration with a name server failed; the broker retries until it succeeds.",
    "namesrv.unregister_failed": "The broker could not tell a name server that it is stopping; "
    "the name server will notice the closed connection.",
    "topic.adopted": "A topic had messages but no configuration, as can happen after a crash; its "
    "configuration was created again.",
    "topic.creation_refused": "A send named an unknown topic that may not be created.",
    **CLIENT_EVENTS,
    # replication
    "replica.unfit": "The master's log does not continue the log of this slave; `reason` says why, "
    "and an operator must act ([runbook](../runbooks/slave-does-not-follow.md)). Logged once for "
    "each reason and text.",
    "replica.lost": "The connection to the master ended; the slave tries again. In a broker group, "
    "logged only after 3 s, or if the master broke the protocol.",
    "replica.disconnected": "The connection of a member of a broker group to its master ended, or "
    "an attempt to connect failed, as in every switchover; the member tries again.",
    "replica.failed": "The slave cannot connect to its master, or cannot write the log to its own "
    "disk; the slave tries again.",
    "replica.copy_failed": "A slave could not copy a table of its master; it tries again in the "
    "next round.",
    "slave.refused": "The log of a slave does not match the log of this master (`reason` says "
    "why), or something other than a slave connects to haListenPort "
    "([runbook](../runbooks/slave-does-not-follow.md)). Logged once for each host, reason and "
    "text.",
    "slave.deferred": "A slave asked a broker that is not currently the master of its broker "
    "group, as in every switchover; it finds the current master in the record of the group.",
    "slave.silent": "A connection to haListenPort was silent for haHousekeepingInterval and is "
    "closed.",
    "slave.turned_away": "A connection to haListenPort exceeded haConnectionsMax and was closed.",
    "follower.silent": "A member of the broker group sent nothing for 5 s; its connection is "
    "closed.",
    "follower.unproven": "A broker without the group's key follows this master, because "
    "groupKeyRequired is false.",
    "group.exposed": "Strangers who reach haListenPort can speak as members of the broker group; "
    "`risk` says why. Logged at every start.",
    "group_key.reloaded": "The keys of the broker group have changed; connections that were proven "
    "with a removed key are closed.",
    "follower.refused": "A member of the broker group does not follow this master; `error` gives "
    "its reason.",
    "tail.cut": "This broker's log had messages that its master does not have and that were never "
    "confirmed: they were cut off and copied to `file`.",
    "tail.not_kept": "The end of the log that is being cut off could not be copied; it is cut off "
    "anyway, because it was never confirmed.",
    "slave.log_unreadable": "This broker cannot read its own log for a slave, because of a "
    "failing disk or a damaged record; run `cometmq store verify`.",
}
