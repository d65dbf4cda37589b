// SPDX-License-Identifier: Apache-2.0
package io.cometmq.peers;

import java.io.PrintStream;
import java.nio.charset.StandardCharsets;
import org.junit.runner.Description;
import org.junit.runner.JUnitCore;
import org.junit.runner.notification.Failure;
import org.junit.runner.notification.RunListener;

/** Runs JUnit classes and prints one JSON line for each test. */
public final class RunTests extends RunListener {
    private static final PrintStream OUT = new PrintStream(System.out, true, StandardCharsets.UTF_8);

    private String failure;

    private RunTests() {
    }

    public static void main(String[] names) throws ClassNotFoundException {
        JUnitCore core = new JUnitCore();
        core.addListener(new RunTests());
        for (String name : names) {
            core.run(Class.forName("org.apache.rocketmq.test." + name));
        }
        System.exit(0);
    }

    @Override
    public void testStarted(Description test) {
        failure = null;
    }

    @Override
    public void testFailure(Failure reported) {
        failure = String.valueOf(reported.getException());
        if (reported.getDescription().getMethodName() == null) {
            print("failed", reported.getDescription());
        }
    }

    @Override
    public void testFinished(Description test) {
        print(failure == null ? "passed" : "failed", test);
    }

    @Override
    public void testIgnored(Description test) {
        failure = null;
        print("ignored", test);
    }

    private void print(String event, Description test) {
        String reason = failure == null ? "" : failure.replaceAll("[\"\\\\\\p{Cntrl}]", " ");
        OUT.println("{\"event\":\"" + event + "\",\"test\":\"" + test.getDisplayName()
            + "\",\"reason\":\"" + reason + "\"}");
    }
}
