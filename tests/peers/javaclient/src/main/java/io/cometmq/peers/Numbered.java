// SPDX-License-Identifier: Apache-2.0
package io.cometmq.peers;

import java.nio.charset.StandardCharsets;
import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.apache.rocketmq.client.consumer.listener.ConsumeOrderlyStatus;
import org.apache.rocketmq.client.consumer.listener.MessageListenerOrderly;
import org.apache.rocketmq.client.exception.MQClientException;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.client.producer.SendResult;
import org.apache.rocketmq.common.consumer.ConsumeFromWhere;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.common.message.MessageExt;

/**
 * A producer of numbered messages, and an orderly consumer that prints an event for each of them.
 */
final class Numbered {
    final DefaultMQProducer producer;
    final DefaultMQPushConsumer consumer;
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
        consumer = new DefaultMQPushConsumer(options.text("consumer-group"));
        consumer.setNamesrvAddr(options.text("namesrv"));
        consumer.setPollNameServerInterval(pollRoutesMs);
        consumer.setMqClientApiTimeout(apiTimeoutMs);
        consumer.setConsumeFromWhere(ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET);
        consumer.subscribe(topic, "*");
        consumer.registerMessageListener((MessageListenerOrderly) (messages, context) -> {
            messages.forEach(Numbered::received);
            return ConsumeOrderlyStatus.SUCCESS;
        });
    }

    void start() throws MQClientException {
        consumer.start();
        producer.start();
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
        new Event("received")
            .with("number", Long.parseLong(new String(message.getBody(), StandardCharsets.UTF_8)))
            .with("queue_id", message.getQueueId())
            .with("queue_offset", message.getQueueOffset())
            .print();
    }
}
