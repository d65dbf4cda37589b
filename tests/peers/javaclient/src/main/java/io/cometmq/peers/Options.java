// SPDX-License-Identifier: Apache-2.0
package io.cometmq.peers;

import java.util.HashMap;
import java.util.Map;

/** Options of the form {@code --name value}. */
final class Options {
    /** The client's default of 3 s can pass before a loaded machine has opened a connection. */
    static final int API_TIMEOUT_MS = 30_000;

    private final Map<String, String> values = new HashMap<>();

    Options(String[] args) {
        for (int i = 0; i + 1 < args.length; i += 2) {
            if (!args[i].startsWith("--")) {
                throw new IllegalArgumentException("not an option: " + args[i]);
            }
            values.put(args[i].substring(2), args[i + 1]);
        }
    }

    String text(String name) {
        String value = values.get(name);
        if (value == null) {
            throw new IllegalArgumentException("missing --" + name);
        }
        return value;
    }

    String text(String name, String otherwise) {
        return values.getOrDefault(name, otherwise);
    }

    int number(String name, int otherwise) {
        return Integer.parseInt(values.getOrDefault(name, Integer.toString(otherwise)));
    }
}
