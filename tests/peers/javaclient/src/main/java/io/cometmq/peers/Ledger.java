// SPDX-License-Identifier: Apache-2.0
package io.cometmq.peers;

import java.nio.file.Files;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.List;
import java.util.concurrent.atomic.AtomicLong;
import org.apache.rocketmq.client.producer.SendResult;

/**
 * Sends numbered messages and consumes them in order, and prints an event for each step.
 *
 * <p>Sending ends when the file {@code --stop-sending} exists, the program when {@code --stop} does.
 * Times are {@link System#nanoTime}, which is CLOCK_MONOTONIC on Linux.
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
        Numbered clients = new Numbered(options);
        clients.start();
        List<Thread> senders = new ArrayList<>();
        for (int i = 0; i < options.number("senders", 4); i++) {
            int sender = i;
            senders.add(new Thread(() -> send(clients, sender)));
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
        clients.shutdown();
        return Main.STATUS_DONE;
    }

    private void await(String option) throws InterruptedException {
        Path file = Path.of(options.text(option));
        while (!Files.exists(file)) {
            Thread.sleep(POLL_MS);
        }
    }

    private void send(Numbered clients, int sender) {
        try {
            while (isSending) {
                long number = numbers.getAndIncrement();
                new Event("sending").with("number", number).with("sender", sender)
                    .with("at_ns", System.nanoTime()).print();
                sendOne(clients, sender, number).with("at_ns", System.nanoTime()).print();
                Thread.sleep(options.number("pause-ms", 20));
            }
        } catch (InterruptedException e) {
            Thread.currentThread().interrupt();
        }
    }

    private static Event sendOne(Numbered clients, int sender, long number)
        throws InterruptedException {
        try {
            SendResult result = clients.send(sender, number);
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
}
