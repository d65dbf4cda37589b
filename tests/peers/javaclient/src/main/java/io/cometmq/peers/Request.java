// SPDX-License-Identifier: Apache-2.0
package io.cometmq.peers;

import java.nio.charset.StandardCharsets;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.TimeUnit;
import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.apache.rocketmq.client.consumer.listener.ConsumeConcurrentlyStatus;
import org.apache.rocketmq.client.consumer.listener.MessageListenerConcurrently;
import org.apache.rocketmq.client.exception.RequestTimeoutException;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.client.producer.SendResult;
import org.apache.rocketmq.client.utils.MessageUtil;
import org.apache.rocketmq.common.consumer.ConsumeFromWhere;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.common.message.MessageExt;

/**
 * Request-reply: one program sends requests, another replies with "re:" before each body.
 *
 * <p>Requests choose their queue by a selector: the plain form of 4.9.4 returns the request itself.
 * Client 5.3.3 can only reply: its requests time out as soon as they are sent.
 */
final class Request {
    private final Options options;

    Request(Options options) {
        this.options = options;
    }

    int ask() throws Exception {
        DefaultMQProducer producer = producer("Requester");
        try {
            for (int i = 0; i < options.number("count", 1); i++) {
                ask(producer, options.text("key", "ask") + "-" + i);
            }
            return Main.STATUS_DONE;
        } finally {
            producer.shutdown();
        }
    }

    private void ask(DefaultMQProducer producer, String key) throws Exception {
        Message message = new Message(options.text("topic"), "TagA", key,
            key.getBytes(StandardCharsets.UTF_8));
        try {
            Message reply = producer.request(message,
                (queues, asked, number) -> queues.get((Integer) number % queues.size()),
                key.hashCode() & 0xff, options.number("timeout-ms", 20_000));
            new Event("replied").with("key", key).with("text", text(reply)).print();
        } catch (RequestTimeoutException e) {
            new Event("timeout").with("key", key).print();
        }
    }

    int reply() throws Exception {
        CountDownLatch wanted = new CountDownLatch(options.number("count", 1));
        DefaultMQProducer producer = producer("Replier");
        DefaultMQPushConsumer consumer = new DefaultMQPushConsumer(options.text("group"));
        consumer.setNamesrvAddr(options.text("namesrv"));
        consumer.setMqClientApiTimeout(Options.API_TIMEOUT_MS);
        consumer.setConsumeFromWhere(ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET);
        consumer.subscribe(options.text("topic"), "*");
        consumer.registerMessageListener((MessageListenerConcurrently) (messages, context) -> {
            for (MessageExt message : messages) {
                answer(producer, message);
                wanted.countDown();
            }
            return ConsumeConcurrentlyStatus.CONSUME_SUCCESS;
        });
        consumer.start();
        new Event("started").print();
        boolean complete = wanted.await(options.number("timeout-s", 60), TimeUnit.SECONDS);
        consumer.shutdown();
        producer.shutdown();
        return complete ? Main.STATUS_DONE : Main.STATUS_DEADLINE;
    }

    private static void answer(DefaultMQProducer producer, MessageExt asked) {
        Event event = new Event("answered").with("key", asked.getKeys());
        try {
            byte[] body = ("re:" + text(asked)).getBytes(StandardCharsets.UTF_8);
            SendResult result = producer.send(MessageUtil.createReplyMessage(asked, body), 15_000);
            event.with("status", result.getSendStatus().name())
                .with("topic", result.getMessageQueue().getTopic())
                .with("msg_id", result.getOffsetMsgId())
                .print();
        } catch (Exception e) {
            event.with("status", e.toString()).print();
        }
    }

    private DefaultMQProducer producer(String group) throws Exception {
        DefaultMQProducer producer = new DefaultMQProducer(group);
        producer.setNamesrvAddr(options.text("namesrv"));
        producer.setMqClientApiTimeout(Options.API_TIMEOUT_MS);
        producer.setRetryTimesWhenSendFailed(0);
        producer.start();
        return producer;
    }

    private static String text(Message message) {
        return new String(message.getBody(), StandardCharsets.UTF_8);
    }
}
