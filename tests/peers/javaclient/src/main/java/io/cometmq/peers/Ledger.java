// SPDX-License-Identifier: Apache-2.0
package io.cometmq.peers;

import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.List;
import java.util.concurrent.atomic.AtomicLong;
import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.apache.rocketmq.client.consumer.listener.ConsumeOrderlyStatus;
import org.apache.rocketmq.client.consumer.listener.MessageListenerOrderly;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.client.producer.SendResult;
import org.apache.rocketmq.common.consumer.ConsumeFromWhere;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.common.message.MessageExt;

/**
 * Sends numbered messages and consumes them in order, and prints an event for each step.
 *
 * <p>Sending ends when the file {@code --stop-sending} exists, the program when {@code --stop} does.
 * Even-numbered senders let the client choose queues and retry; odd-numbered senders always use one
 * queue and make a single attempt per send. Times are {@link System#nanoTime}, which is
 * CLOCK_MONOTONIC on Linux.
 */
final class Ledger {
    private static final int POLL_MS = 50;

    private final Options options;
    private final AtomicLong numbers = new AtomicLong();
    private volatile boolean isSending = true;

    Ledger(Options options) {
        this.options = options;
    }

    int run() throws Exception {
        DefaultMQPushConsumer consumer = consumer();
        DefaultMQProducer producer = producer();
        consumer.start();
        producer.start();
        List<Thread> senders = new ArrayList<>();
        for (int i = 0; i < options.number("senders", 4); i++) {
            int sender = i;
            senders.add(new Thread(() -> send(producer, sender)));
            senders.get(i).start();
        }
        new Event("started").print();
        await("stop-sending");
        isSending = false;
        for (Thread sender : senders) {
            sender.join();
        }
        new Event("stopped").print();
        await("stop");
        producer.shutdown();
        consumer.shutdown();
        return Main.STATUS_DONE;
    }

    private void await(String option) throws InterruptedException {
        Path file = Path.of(options.text(option));
        while (!Files.exists(file)) {
            Thread.sleep(POLL_MS);
        }
    }

    private void send(DefaultMQProducer producer, int sender) {
        try {
            while (isSending) {
                long number = numbers.getAndIncrement();
                new Event("sending").with("number", number).with("sender", sender)
                    .with("at_ns", System.nanoTime()).print();
                sendOne(producer, sender, number).with("at_ns", System.nanoTime()).print();
                Thread.sleep(options.number("pause-ms", 20));
            }
        } catch (InterruptedException e) {
            Thread.currentThread().interrupt();
        }
    }

    private Event sendOne(DefaultMQProducer producer, int sender, long number)
        throws InterruptedException {
        Message message = new Message(options.text("topic"),
            Long.toString(number).getBytes(StandardCharsets.UTF_8));
        try {
            SendResult result = sender % 2 == 0
                ? producer.send(message)
                : producer.send(message, (queues, sent, key) -> queues.get((Integer) key % queues.size()), sender);
            return new Event("sent").with("number", number)
                .with("status", result.getSendStatus().name())
                .with("queue_id", result.getMessageQueue().getQueueId())
                .with("queue_offset", result.getQueueOffset());
        } catch (InterruptedException e) {
            throw e;
        } catch (Exception e) {
            return new Event("failed").with("number", number).with("error", e.toString());
        }
    }

    private DefaultMQProducer producer() {
        DefaultMQProducer producer = new DefaultMQProducer("java-ledger-senders");
        producer.setNamesrvAddr(options.text("namesrv"));
        producer.setPollNameServerInterval(options.number("poll-routes-ms", 30_000));
        producer.setMqClientApiTimeout(Options.API_TIMEOUT_MS);
        producer.setSendMsgTimeout(options.number("timeout-ms", 3000));
        return producer;
    }

    private DefaultMQPushConsumer consumer() throws Exception {
        DefaultMQPushConsumer consumer = new DefaultMQPushConsumer("java-ledger-readers");
        consumer.setNamesrvAddr(options.text("namesrv"));
        consumer.setPollNameServerInterval(options.number("poll-routes-ms", 30_000));
        consumer.setMqClientApiTimeout(Options.API_TIMEOUT_MS);
        consumer.setConsumeFromWhere(ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET);
        consumer.subscribe(options.text("topic"), "*");
        consumer.registerMessageListener((MessageListenerOrderly) (messages, context) -> {
            for (MessageExt message : messages) {
                new Event("received")
                    .with("number", Long.parseLong(new String(message.getBody(), StandardCharsets.UTF_8)))
                    .with("queue_id", message.getQueueId())
                    .with("queue_offset", message.getQueueOffset())
                    .print();
            }
            return ConsumeOrderlyStatus.SUCCESS;
        });
        return consumer;
    }
}
