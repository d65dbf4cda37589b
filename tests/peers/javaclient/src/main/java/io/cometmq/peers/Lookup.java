// SPDX-License-Identifier: Apache-2.0
package io.cometmq.peers;

import java.util.Map;
import org.apache.rocketmq.client.QueryResult;
import org.apache.rocketmq.common.message.MessageExt;
import org.apache.rocketmq.common.message.MessageQueue;
import org.apache.rocketmq.tools.admin.DefaultMQAdminExt;

/** Messages by id and by key; offsets of the queues of a topic. */
final class Lookup {
    private static final int QUERY_MAX = 64;

    private final Options options;
    private final DefaultMQAdminExt admin = new DefaultMQAdminExt("JavaLookup");

    Lookup(Options options) {
        this.options = options;
        admin.setNamesrvAddr(options.text("namesrv"));
        admin.setMqClientApiTimeout(Options.API_TIMEOUT_MS);
    }

    int view() throws Exception {
        admin.start();
        for (String id : options.text("ids").split(",")) {
            new Event("received").with("asked", id)
                .with(admin.viewMessage(options.text("topic"), id)).print();
        }
        admin.shutdown();
        return Main.STATUS_DONE;
    }

    /** Keys of one topic, or of several in the form "topic:key". */
    int query() throws Exception {
        admin.start();
        for (String asked : options.text("keys").split(",")) {
            int colon = asked.indexOf(':');
            String key = asked.substring(colon + 1);
            String topic = colon < 0 ? options.text("topic") : asked.substring(0, colon);
            QueryResult result = admin.queryMessage(topic, key, QUERY_MAX, 0, Long.MAX_VALUE);
            for (MessageExt message : result.getMessageList()) {
                new Event("received").with("asked", key).with(message).print();
            }
        }
        admin.shutdown();
        return Main.STATUS_DONE;
    }

    /** The answers of one or all members of a group; mqadmin 4.9.4 has no such command. */
    int members() throws Exception {
        admin.start();
        Map<String, Map<MessageQueue, Long>> members = admin.getConsumeStatus(
            options.text("topic"), options.text("group"), options.text("client-id", ""));
        members.forEach((clientId, offsets) -> offsets.forEach((queue, offset) ->
            new Event("member")
                .with("client_id", clientId)
                .with("queue_id", queue.getQueueId())
                .with("offset", offset)
                .print()));
        admin.shutdown();
        return Main.STATUS_DONE;
    }

    int queues() throws Exception {
        admin.start();
        for (MessageQueue queue : admin.examineTopicStats(options.text("topic"))
            .getOffsetTable().keySet()) {
            new Event("queue")
                .with("broker", queue.getBrokerName())
                .with("queue_id", queue.getQueueId())
                .with("min_offset", admin.minOffset(queue))
                .with("max_offset", admin.maxOffset(queue))
                .with("first_stored_ms", admin.earliestMsgStoreTime(queue))
                .with("offset_at", admin.searchOffset(queue, Long.parseLong(options.text("at", "0"))))
                .print();
        }
        admin.shutdown();
        return Main.STATUS_DONE;
    }
}
