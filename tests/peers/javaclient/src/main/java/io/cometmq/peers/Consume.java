// SPDX-License-Identifier: Apache-2.0
package io.cometmq.peers;

import java.util.HashSet;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.TimeUnit;
import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.apache.rocketmq.client.consumer.MessageSelector;
import org.apache.rocketmq.client.consumer.listener.ConsumeConcurrentlyStatus;
import org.apache.rocketmq.client.consumer.listener.ConsumeOrderlyStatus;
import org.apache.rocketmq.client.consumer.listener.MessageListenerConcurrently;
import org.apache.rocketmq.client.consumer.listener.MessageListenerOrderly;
import org.apache.rocketmq.client.consumer.rebalance.AllocateMessageQueueAveragely;
import org.apache.rocketmq.client.consumer.store.OffsetStore;
import org.apache.rocketmq.client.consumer.store.ReadOffsetType;
import org.apache.rocketmq.client.impl.consumer.DefaultMQPushConsumerImpl;
import org.apache.rocketmq.common.consumer.ConsumeFromWhere;
import org.apache.rocketmq.common.message.MessageExt;
import org.apache.rocketmq.common.message.MessageQueue;

/** Push consumer that ends after a number of distinct messages or at a deadline. */
final class Consume {
    /** The last listener call must end before the offsets are stored. */
    private static final int SHUTDOWN_MS = 5000;

    private final Options options;
    private final int failFirst;
    private final CountDownLatch wanted;
    private final Set<String> seen = ConcurrentHashMap.newKeySet();

    Consume(Options options) {
        this.options = options;
        failFirst = options.number("fail-first", 0);
        wanted = new CountDownLatch(options.number("count", 1));
    }

    int run() throws Exception {
        DefaultMQPushConsumer consumer = new DefaultMQPushConsumer(
            options.text("namespace", null), options.text("group"), null,
            new AllocateMessageQueueAveragely(),
            options.text("trace", "false").equals("true"), null);
        consumer.setNamesrvAddr(options.text("namesrv"));
        consumer.setMqClientApiTimeout(Options.API_TIMEOUT_MS);
        consumer.setConsumeFromWhere(ConsumeFromWhere.valueOf(
            options.text("from", "CONSUME_FROM_FIRST_OFFSET")));
        consumer.setConsumeTimestamp(options.text("moment", consumer.getConsumeTimestamp()));
        // The package of this type differs between releases.
        consumer.setMessageModel(Enum.valueOf(consumer.getMessageModel().getDeclaringClass(),
            options.text("model", "CLUSTERING")));
        consumer.setMaxReconsumeTimes(options.number("max-reconsume-times", -1));
        consumer.setConsumeMessageBatchMaxSize(options.number("batch", 1));
        consumer.setAwaitTerminationMillisWhenShutdown(SHUTDOWN_MS);
        String sql = options.text("sql", "");
        if (sql.isEmpty()) {
            consumer.subscribe(options.text("topic"), options.text("tags", "*"));
        } else {
            consumer.subscribe(options.text("topic"), MessageSelector.bySql(sql));
        }
        if (options.text("orderly", "false").equals("true")) {
            consumer.registerMessageListener(orderly());
        } else {
            consumer.registerMessageListener(concurrent());
        }
        consumer.start();
        new Event("started").print();
        boolean complete = wanted.await(options.number("timeout-s", 60), TimeUnit.SECONDS);
        storeFirst(consumer.getDefaultMQPushConsumerImpl().getOffsetStore());
        consumer.shutdown();
        return complete ? Main.STATUS_DONE : Main.STATUS_DEADLINE;
    }

    /**
     * Store one offset of each topic and wait for the answer, before the shutdown stores all at
     * once. RocketMQ's broker loses some of a group's first offsets of a topic if it serves several
     * at the same time, because each of them creates the table of offsets.
     */
    private static void storeFirst(OffsetStore offsets) throws Exception {
        Set<String> topics = new HashSet<>();
        for (Map.Entry<MessageQueue, Long> one : offsets.cloneOffsetTable(null).entrySet()) {
            if (topics.add(one.getKey().getTopic())) {
                offsets.updateConsumeOffsetToBroker(one.getKey(), one.getValue(), false);
            }
        }
    }

    /**
     * A shutdown sends the offsets once, without waiting for an answer: a broker may lose one of a
     * group's first offsets if they arrive together, and a pull in flight may reset one.
     */
    static void storeOffsets(DefaultMQPushConsumerImpl consumer) throws Exception {
        OffsetStore offsets = consumer.getOffsetStore();
        for (MessageQueue queue : consumer.getRebalanceImpl().getProcessQueueTable().keySet()) {
            long offset = offsets.readOffset(queue, ReadOffsetType.READ_FROM_MEMORY);
            if (offset >= 0) {
                offsets.updateConsumeOffsetToBroker(queue, offset, false);
            }
        }
    }

    private MessageListenerConcurrently concurrent() {
        return (messages, context) -> accept(messages)
            ? ConsumeConcurrentlyStatus.CONSUME_SUCCESS
            : ConsumeConcurrentlyStatus.RECONSUME_LATER;
    }

    private MessageListenerOrderly orderly() {
        return (messages, context) -> accept(messages)
            ? ConsumeOrderlyStatus.SUCCESS
            : ConsumeOrderlyStatus.SUSPEND_CURRENT_QUEUE_A_MOMENT;
    }

    /** Refuse all messages of a call until the first one has been tried {@code failFirst} times. */
    private boolean accept(List<MessageExt> messages) {
        boolean accepted = messages.get(0).getReconsumeTimes() >= failFirst;
        for (MessageExt message : messages) {
            new Event(accepted ? "received" : "refused").with(message)
                .with("at_ns", System.nanoTime()).print();
            if (accepted && seen.add(message.getKeys())) {
                wanted.countDown();
            }
        }
        return accepted;
    }
}
