// SPDX-License-Identifier: Apache-2.0
package io.cometmq.peers;

import java.nio.charset.StandardCharsets;
import java.util.Map;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.TimeUnit;
import org.apache.rocketmq.client.producer.LocalTransactionState;
import org.apache.rocketmq.client.producer.TransactionListener;
import org.apache.rocketmq.client.producer.TransactionMQProducer;
import org.apache.rocketmq.client.producer.TransactionSendResult;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.common.message.MessageExt;

/**
 * Sends transactional messages, each with its plan, and answers brokers' checks until stopped.
 *
 * <p>A plan such as {@code unknown>unknown>commit} has the answer of the local transaction, then
 * the answer to each check; the last word applies to all further checks. Other words are rollback,
 * exception and hang. The plan is part of the message, so any producer can follow it.
 */
final class Transact implements TransactionListener {
    private static final String PLAN = "plan";
    private static final String IMMUNITY = "CHECK_IMMUNITY_TIME_IN_SECONDS";

    private final Options options;
    private final Map<String, Integer> checks = new ConcurrentHashMap<>();

    Transact(Options options) {
        this.options = options;
    }

    int run() throws Exception {
        TransactionMQProducer producer = new TransactionMQProducer(
            options.text("namespace", null), options.text("group"), null,
            options.text("trace", "false").equals("true"), null);
        producer.setNamesrvAddr(options.text("namesrv"));
        producer.setMqClientApiTimeout(Options.API_TIMEOUT_MS);
        producer.setSendMsgTimeout(options.number("timeout-ms", 10_000));
        producer.setTransactionListener(this);
        producer.start();
        new Event("started").print();
        String plans = options.text("plans", "");
        if (!plans.isEmpty()) {
            send(producer, plans.split(","));
        }
        new Event("done").print();
        new CountDownLatch(1).await(options.number("stay-s", 120), TimeUnit.SECONDS);
        producer.shutdown();
        return Main.STATUS_DONE;
    }

    private void send(TransactionMQProducer producer, String[] plans) throws Exception {
        for (int i = 0; i < plans.length; i++) {
            String key = options.text("key", "tx") + "-" + i;
            Message message = new Message(options.text("topic"), "TagA", key,
                key.getBytes(StandardCharsets.UTF_8));
            message.putUserProperty(PLAN, plans[i]);
            if (options.number("immunity-s", 0) > 0) {
                message.putUserProperty(IMMUNITY, options.text("immunity-s"));
            }
            TransactionSendResult result = producer.sendMessageInTransaction(message, null);
            new Event("sent")
                .with("key", key)
                .with("status", result.getSendStatus().name())
                .with("state", result.getLocalTransactionState().name())
                .with("msg_id", result.getMsgId())
                .with("offset_msg_id", result.getOffsetMsgId())
                .with("queue_offset", result.getQueueOffset())
                .print();
        }
    }

    @Override
    public LocalTransactionState executeLocalTransaction(Message message, Object argument) {
        new Event("executed")
            .with("key", message.getKeys())
            .with("transaction_id", message.getTransactionId())
            .print();
        return answer(message, 0);
    }

    @Override
    public LocalTransactionState checkLocalTransaction(MessageExt message) {
        int count = checks.merge(message.getKeys(), 1, Integer::sum);
        new Event("checked")
            .with(message)
            .with("transaction_id", message.getTransactionId())
            .with("count", count)
            .with("age_ms", System.currentTimeMillis() - message.getBornTimestamp())
            .print();
        return answer(message, count);
    }

    private static LocalTransactionState answer(Message message, int step) {
        String[] plan = message.getUserProperty(PLAN).split(">");
        switch (plan[Math.min(step, plan.length - 1)]) {
            case "commit":
                return LocalTransactionState.COMMIT_MESSAGE;
            case "rollback":
                return LocalTransactionState.ROLLBACK_MESSAGE;
            case "unknown":
                return LocalTransactionState.UNKNOW;
            case "none":
                return null;
            case "exception":
                throw new IllegalStateException("as planned");
            case "hang":
                hang();
                return null;
            default:
                throw new IllegalArgumentException("plan " + message.getUserProperty(PLAN));
        }
    }

    private static void hang() {
        try {
            new CountDownLatch(1).await();
        } catch (InterruptedException e) {
            Thread.currentThread().interrupt();
        }
    }
}
