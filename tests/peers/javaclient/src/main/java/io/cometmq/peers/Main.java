// SPDX-License-Identifier: Apache-2.0
package io.cometmq.peers;

import java.util.Arrays;

/** The official client as a command line: one subcommand per run, one JSON line per event. */
public final class Main {
    static final int STATUS_DONE = 0;
    static final int STATUS_FAILED = 1;
    static final int STATUS_USAGE = 2;
    static final int STATUS_DEADLINE = 3;

    private Main() {
    }

    public static void main(String[] args) {
        if (args.length == 0) {
            System.err.println(
                "usage: send|consume|load|lite-pull|pull|sql-pull|view|query|queues|members|request|reply|transact|mqadmin|acl|ledger");
            System.exit(STATUS_USAGE);
        }
        Options options = new Options(Arrays.copyOfRange(args, 1, args.length));
        System.exit(statusOf(args[0], options));
    }

    /** Otherwise the client's threads would keep the JVM alive after a failure. */
    private static int statusOf(String command, Options options) {
        try {
            return run(command, options);
        } catch (Exception e) {
            e.printStackTrace();
            return STATUS_FAILED;
        }
    }

    private static int run(String command, Options options) throws Exception {
        switch (command) {
            case "send":
                return new Send(options).run();
            case "consume":
                return new Consume(options).run();
            case "load":
                return new Load(options).run();
            case "lite-pull":
                return new Pull(options).runLite();
            case "pull":
                return new Pull(options).runPlain();
            case "sql-pull":
                return new SqlPull(options).run();
            case "view":
                return new Lookup(options).view();
            case "query":
                return new Lookup(options).query();
            case "queues":
                return new Lookup(options).queues();
            case "members":
                return new Lookup(options).members();
            case "request":
                return new Request(options).ask();
            case "reply":
                return new Request(options).reply();
            case "transact":
                return new Transact(options).run();
            case "acl":
                return new Acl(options).run();
            case "ledger":
                return new Ledger(options).run();
            case "mqadmin":
                return new Admin(options).run();
            default:
                System.err.println("unknown command " + command);
                return STATUS_USAGE;
        }
    }
}
