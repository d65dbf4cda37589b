// SPDX-License-Identifier: Apache-2.0
package io.cometmq.peers;

import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.List;
import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.apache.rocketmq.client.consumer.listener.ConsumeConcurrentlyStatus;
import org.apache.rocketmq.client.consumer.listener.ConsumeOrderlyStatus;
import org.apache.rocketmq.client.consumer.listener.MessageListenerConcurrently;
import org.apache.rocketmq.client.consumer.listener.MessageListenerOrderly;
import org.apache.rocketmq.client.exception.MQClientException;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.client.producer.SendResult;
import org.apache.rocketmq.common.consumer.ConsumeFromWhere;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.common.message.MessageExt;

/**
 * A producer of numbered messages, and an orderly consumer that prints an event for each of them;
 * with the option {@code --concurrent-group}, also a concurrent one.
 */
final class Numbered {
    final DefaultMQProducer producer;
    final List<DefaultMQPushConsumer> consumers = new ArrayList<>();
    private final String topic;

    Numbered(Options options) throws MQClientException {
        topic = options.text("topic");
        int pollRoutesMs = options.number("poll-routes-ms", 30_000);
        int apiTimeoutMs = options.number("api-timeout-ms", Options.API_TIMEOUT_MS);
        producer = new DefaultMQProducer(options.text("producer-group"));
        producer.setNamesrvAddr(options.text("namesrv"));
        producer.setPollNameServerInterval(pollRoutesMs);
        producer.setMqClientApiTimeout(apiTimeoutMs);
        producer.setSendMsgTimeout(options.number("timeout-ms", 3000));
        DefaultMQPushConsumer orderly = consumer(options, "consumer-group");
        orderly.registerMessageListener((MessageListenerOrderly) (messages, context) -> {
            messages.forEach(Numbered::received);
            return ConsumeOrderlyStatus.SUCCESS;
        });
        if (!options.text("concurrent-group", "").isEmpty()) {
            DefaultMQPushConsumer beside = consumer(options, "concurrent-group");
            beside.registerMessageListener((MessageListenerConcurrently) (messages, context) -> {
                messages.forEach(message -> event("concurrent", message).print());
                return ConsumeConcurrentlyStatus.CONSUME_SUCCESS;
            });
        }
    }

    private DefaultMQPushConsumer consumer(Options options, String group)
        throws MQClientException {
        DefaultMQPushConsumer consumer = new DefaultMQPushConsumer(options.text(group));
        consumer.setNamesrvAddr(options.text("namesrv"));
        consumer.setPollNameServerInterval(producer.getPollNameServerInterval());
        consumer.setMqClientApiTimeout(producer.getMqClientApiTimeout());
        consumer.setConsumeFromWhere(ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET);
        consumer.subscribe(topic, "*");
        consumers.add(consumer);
        return consumer;
    }

    void start() throws MQClientException {
        for (DefaultMQPushConsumer consumer : consumers) {
            consumer.start();
        }
        producer.start();
    }

    void shutdown() {
        producer.shutdown();
        consumers.forEach(DefaultMQPushConsumer::shutdown);
    }

    /**
     * Even-numbered senders let the client choose queues and retry; odd-numbered senders always use
     * one queue and make a single attempt per send.
     */
    SendResult send(int sender, long number) throws Exception {
        Message message = new Message(topic, Long.toString(number).getBytes(StandardCharsets.UTF_8));
        if (sender % 2 == 0) {
            return producer.send(message);
        }
        return producer.send(message,
            (queues, sent, key) -> queues.get((Integer) key % queues.size()), sender);
    }

    private static void received(MessageExt message) {
        event("received", message)
            .with("queue_id", message.getQueueId())
            .with("queue_offset", message.getQueueOffset())
            .print();
    }

    private static Event event(String name, MessageExt message) {
        return new Event(name)
            .with("number", Long.parseLong(new String(message.getBody(), StandardCharsets.UTF_8)))
            .with("at_ns", System.nanoTime());
    }
}
