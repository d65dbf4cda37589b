// SPDX-License-Identifier: Apache-2.0
package io.cometmq.peers;

import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.List;
import java.util.Random;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.TimeUnit;
import org.apache.rocketmq.client.exception.MQClientException;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.client.producer.SendCallback;
import org.apache.rocketmq.client.producer.SendResult;
import org.apache.rocketmq.common.message.Message;

/** Sends numbered messages and prints the broker's answer to each. */
final class Send {
    private static final int BATCH_SIZE = 10;
    private static final int ORDERED_KEYS = 4;
    private static final int ASYNC_TIMEOUT_S = 60;

    private final Options options;
    private final DefaultMQProducer producer;

    Send(Options options) {
        this.options = options;
        producer = new DefaultMQProducer(options.text("namespace", null),
            options.text("group", "JavaProducer"), null,
            options.text("trace", "false").equals("true"), null);
        producer.setNamesrvAddr(options.text("namesrv"));
        producer.setMqClientApiTimeout(Options.API_TIMEOUT_MS);
        producer.setSendMsgTimeout(options.number("timeout-ms", 10_000));
        producer.setCompressMsgBodyOverHowmuch(options.number("compress-over", 4096));
    }

    int run() throws Exception {
        producer.start();
        try {
            int status = send(options.text("mode", "sync"), messages());
            // A shutdown loses the traces of the last half second; "stay-s" delays it.
            new CountDownLatch(1).await(options.number("stay-s", 0), TimeUnit.SECONDS);
            return status;
        } finally {
            producer.shutdown();
        }
    }

    private int send(String mode, List<Message> messages) throws Exception {
        switch (mode) {
            case "sync":
                for (Message message : messages) {
                    report(message, producer.send(message));
                }
                return Main.STATUS_DONE;
            case "ordered":
                return sendOrdered(messages);
            case "oneway":
                return sendOneway(messages);
            case "batch":
                return sendBatches(messages);
            case "async":
                return sendAsync(messages);
            default:
                throw new IllegalArgumentException("mode " + mode);
        }
    }

    private int sendOrdered(List<Message> messages) throws Exception {
        for (int i = 0; i < messages.size(); i++) {
            Message message = messages.get(i);
            report(message, producer.send(message,
                (queues, sent, key) -> queues.get((Integer) key % queues.size()), i % ORDERED_KEYS));
        }
        return Main.STATUS_DONE;
    }

    private int sendOneway(List<Message> messages) throws Exception {
        for (Message message : messages) {
            producer.sendOneway(message);
            described(message).print();
        }
        return Main.STATUS_DONE;
    }

    private int sendBatches(List<Message> messages) throws Exception {
        for (int i = 0; i < messages.size(); i += BATCH_SIZE) {
            List<Message> batch = messages.subList(i, Math.min(i + BATCH_SIZE, messages.size()));
            SendResult result = producer.send(batch);
            String[] ids = result.getOffsetMsgId().split(",");
            for (int k = 0; k < batch.size(); k++) {
                described(batch.get(k))
                    .with("status", result.getSendStatus().name())
                    .with("offset_msg_id", ids[k])
                    .with("queue_id", result.getMessageQueue().getQueueId())
                    .with("queue_offset", result.getQueueOffset() + k)
                    .print();
            }
        }
        return Main.STATUS_DONE;
    }

    private int sendAsync(List<Message> messages) throws Exception {
        CountDownLatch answers = new CountDownLatch(messages.size());
        for (Message message : messages) {
            producer.send(message, new SendCallback() {
                @Override
                public void onSuccess(SendResult result) {
                    report(message, result);
                    answers.countDown();
                }

                @Override
                public void onException(Throwable error) {
                    described(message).with("status", error.toString()).print();
                    answers.countDown();
                }
            });
        }
        boolean complete = answers.await(ASYNC_TIMEOUT_S, TimeUnit.SECONDS);
        return complete ? Main.STATUS_DONE : Main.STATUS_DEADLINE;
    }

    private List<Message> messages() throws MQClientException {
        String prefix = options.text("key", "java");
        String[] tags = options.text("tags", "TagA").split(",");
        List<Message> messages = new ArrayList<>();
        for (int i = 0; i < options.number("count", 1); i++) {
            String key = prefix + "-" + i;
            Message message = new Message(options.text("topic"), tags[i % tags.length], key,
                options.number("flag", 0), body(key, options.number("size", 100)), true);
            message.putUserProperty("colour", "gr\u00fcn \u7eff");
            if (options.number("timer-ms", 0) > 0) {
                message.putUserProperty("TIMER_DELAY_MS", "" + options.number("timer-ms", 0));
            }
            if (options.number("delay-level", 0) > 0) {
                message.setDelayTimeLevel(options.number("delay-level", 0));
            }
            messages.add(message);
        }
        return messages;
    }

    /**
     * Half text, half noise, so compression reduces the body but not to nothing. No NUL: the C++
     * client's Python wrapper truncates bodies there.
     */
    private static byte[] body(String key, int size) {
        StringBuilder text = new StringBuilder(key).append(": \u00e4\u00f6\u00fc \u4e2d\u6587 ");
        while (text.length() < size / 2) {
            text.append("the quick brown fox ");
        }
        byte[] head = text.toString().getBytes(StandardCharsets.UTF_8);
        byte[] body = new byte[Math.max(size, head.length)];
        new Random(key.hashCode()).nextBytes(body);
        for (int i = 0; i < body.length; i++) {
            body[i] = body[i] == 0 ? 1 : body[i];
        }
        System.arraycopy(head, 0, body, 0, head.length);
        return body;
    }

    private static void report(Message message, SendResult result) {
        described(message)
            .with("status", result.getSendStatus().name())
            .with("msg_id", result.getMsgId())
            .with("offset_msg_id", result.getOffsetMsgId())
            .with("broker", result.getMessageQueue().getBrokerName())
            .with("queue_id", result.getMessageQueue().getQueueId())
            .with("queue_offset", result.getQueueOffset())
            .print();
    }

    /** Key, tag and content; the producer restores the body after compressing it. */
    private static Event described(Message message) {
        return new Event("sent")
            .with("key", message.getKeys())
            .with("tag", message.getTags())
            .with("sha256", Event.sha256(message.getBody()))
            .with("size", message.getBody().length);
    }
}
