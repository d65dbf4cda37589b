// SPDX-License-Identifier: Apache-2.0
package io.cometmq.peers;

import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.List;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.AtomicInteger;
import java.util.concurrent.atomic.AtomicLong;
import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.apache.rocketmq.client.producer.SendResult;
import org.apache.rocketmq.client.producer.SendStatus;

/**
 * Sends numbered messages and consumes them in order until its standard input ends. Commands, one
 * per line: "now" prints the time, "settle" waits until every sender has been acknowledged again,
 * "finish" stops the senders.
 */
final class Load {
    private static final int SENDERS = 4;
    private static final int PAUSE_MS = 20;
    private static final int PAUSE_AFTER_FAILURE_MS = 50;
    private static final int POLL_MS = 10;

    private final Numbered clients;
    private final AtomicInteger numbers = new AtomicInteger();
    /** When the last acknowledged send of each sender began. */
    private final List<AtomicLong> acknowledged = new ArrayList<>();
    private volatile boolean isSending = true;

    Load(Options options) throws Exception {
        clients = new Numbered(options);
    }

    int run() throws Exception {
        clients.start();
        List<Thread> threads = new ArrayList<>();
        for (int sender = 0; sender < SENDERS; sender++) {
            int number = sender;
            acknowledged.add(new AtomicLong(Long.MIN_VALUE));
            threads.add(new Thread(() -> send(number)));
        }
        threads.forEach(Thread::start);
        settle();
        at("running");
        BufferedReader commands = new BufferedReader(
            new InputStreamReader(System.in, StandardCharsets.UTF_8));
        for (String command = commands.readLine(); command != null; command = commands.readLine()) {
            obey(command, threads);
        }
        for (DefaultMQPushConsumer consumer : clients.consumers) {
            Consume.storeOffsets(consumer.getDefaultMQPushConsumerImpl());
        }
        clients.shutdown();
        return Main.STATUS_DONE;
    }

    private void obey(String command, List<Thread> threads) throws InterruptedException {
        switch (command) {
            case "now":
                break;
            case "settle":
                settle();
                break;
            case "finish":
                isSending = false;
                for (Thread thread : threads) {
                    thread.join();
                }
                break;
            default:
                throw new IllegalArgumentException("command " + command);
        }
        at(command);
    }

    private static void at(String command) {
        new Event("answer").with("command", command).with("at_ns", System.nanoTime()).print();
    }

    private void settle() throws InterruptedException {
        long since = System.nanoTime();
        while (acknowledged.stream().anyMatch(began -> began.get() < since)) {
            TimeUnit.MILLISECONDS.sleep(POLL_MS);
        }
    }

    private void send(int sender) {
        try {
            while (isSending) {
                TimeUnit.MILLISECONDS.sleep(attempt(sender) ? PAUSE_MS : PAUSE_AFTER_FAILURE_MS);
            }
        } catch (InterruptedException e) {
            Thread.currentThread().interrupt();
        }
    }

    private boolean attempt(int sender) throws InterruptedException {
        int number = numbers.getAndIncrement();
        long began = System.nanoTime();
        try {
            SendResult result = clients.send(sender, number);
            if (result.getSendStatus() != SendStatus.SEND_OK) {
                throw new IllegalStateException(result.getSendStatus().name());
            }
            event("sent", number, sender, began)
                .with("queue_id", result.getMessageQueue().getQueueId())
                .with("queue_offset", result.getQueueOffset())
                .print();
        } catch (InterruptedException e) {
            throw e;
        } catch (Exception e) {
            event("failed", number, sender, began).with("error", e.toString()).print();
            return false;
        }
        // Set after printing, so that the answer to `settle` follows the sends that it covers.
        acknowledged.get(sender).set(began);
        return true;
    }

    private static Event event(String name, int number, int sender, long began) {
        return new Event(name)
            .with("number", number)
            .with("sender", sender)
            .with("began_ns", began)
            .with("ended_ns", System.nanoTime());
    }
}
