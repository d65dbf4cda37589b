// SPDX-License-Identifier: Apache-2.0
package io.cometmq.peers;

import java.io.BufferedReader;
import java.io.ByteArrayOutputStream;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.lang.reflect.Field;
import java.lang.reflect.Modifier;
import java.nio.charset.StandardCharsets;
import java.util.List;
import org.apache.rocketmq.tools.command.MQAdminStartup;

/** mqadmin many times in one JVM: a line of tab-separated arguments in, one event out. */
final class Admin {
    private final String namesrv;

    Admin(Options options) {
        namesrv = options.text("namesrv");
    }

    int run() throws Exception {
        System.setProperty("rocketmq.namesrv.addr", namesrv);
        new Event("started").print();
        BufferedReader lines = new BufferedReader(
            new InputStreamReader(System.in, StandardCharsets.UTF_8));
        for (String line = lines.readLine(); line != null; line = lines.readLine()) {
            ByteArrayOutputStream output = new ByteArrayOutputStream();
            ByteArrayOutputStream errors = new ByteArrayOutputStream();
            System.setOut(new PrintStream(output, true, StandardCharsets.UTF_8));
            System.setErr(new PrintStream(errors, true, StandardCharsets.UTF_8));
            forgetCommands();
            MQAdminStartup.main0(line.split("\t", -1), null);
            new Event("done")
                .with("output", output.toString(StandardCharsets.UTF_8))
                .with("errors", errors.toString(StandardCharsets.UTF_8))
                .print();
        }
        return Main.STATUS_DONE;
    }

    /** Each main0 registers all commands again; their list is the class's only static list. */
    private static void forgetCommands() throws IllegalAccessException {
        for (Field field : MQAdminStartup.class.getDeclaredFields()) {
            if (Modifier.isStatic(field.getModifiers()) && field.getType() == List.class) {
                field.setAccessible(true);
                ((List<?>) field.get(null)).clear();
            }
        }
    }
}
