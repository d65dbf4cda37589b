// SPDX-License-Identifier: Apache-2.0
package io.cometmq.peers;

import java.io.PrintStream;
import java.nio.charset.StandardCharsets;
import java.security.MessageDigest;
import java.security.NoSuchAlgorithmException;
import org.apache.rocketmq.common.message.MessageExt;

/** One line of output: a flat JSON object whose first member is "event". */
final class Event {
    /** Kept before {@link Admin} redirects standard output. */
    private static final PrintStream OUT = new PrintStream(System.out, true, StandardCharsets.UTF_8);

    private final StringBuilder line = new StringBuilder();

    Event(String name) {
        line.append("{\"event\":").append(quoted(name));
    }

    Event with(String key, String value) {
        return raw(key, value == null ? "null" : quoted(value));
    }

    Event with(String key, long value) {
        return raw(key, Long.toString(value));
    }

    Event with(String key, boolean value) {
        return raw(key, Boolean.toString(value));
    }

    /** The parts of a received message that tests compare. */
    Event with(MessageExt message) {
        return with("topic", message.getTopic())
            .with("key", message.getKeys())
            .with("tag", message.getTags())
            .with("sha256", sha256(message.getBody()))
            .with("size", message.getBody().length)
            .with("msg_id", message.getMsgId())
            .with("broker", message.getBrokerName())
            .with("queue_id", message.getQueueId())
            .with("queue_offset", message.getQueueOffset())
            .with("reconsume_times", message.getReconsumeTimes())
            .with("flag", message.getFlag())
            .with("colour", message.getUserProperty("colour"))
            .with("born_ms", message.getBornTimestamp())
            .with("stored_ms", message.getStoreTimestamp());
    }

    void print() {
        synchronized (OUT) {
            OUT.println(line + "}");
        }
    }

    static String sha256(byte[] body) {
        try {
            StringBuilder text = new StringBuilder();
            for (byte octet : MessageDigest.getInstance("SHA-256").digest(body)) {
                text.append(String.format("%02x", octet));
            }
            return text.toString();
        } catch (NoSuchAlgorithmException e) {
            throw new IllegalStateException(e);
        }
    }

    private Event raw(String key, String value) {
        line.append(',').append(quoted(key)).append(':').append(value);
        return this;
    }

    private static String quoted(String text) {
        StringBuilder quoted = new StringBuilder("\"");
        for (char c : text.toCharArray()) {
            if (c == '"' || c == '\\') {
                quoted.append('\\').append(c);
            } else if (c < ' ') {
                quoted.append(String.format("\\u%04x", (int) c));
            } else {
                quoted.append(c);
            }
        }
        return quoted.append('"').toString();
    }
}
