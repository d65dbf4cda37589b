// SPDX-License-Identifier: Apache-2.0
package io.cometmq.peers;

import org.apache.rocketmq.client.consumer.DefaultMQPullConsumer;
import org.apache.rocketmq.client.consumer.MessageSelector;
import org.apache.rocketmq.client.consumer.PullResult;
import org.apache.rocketmq.client.consumer.PullStatus;
import org.apache.rocketmq.client.exception.MQClientException;
import org.apache.rocketmq.common.message.MessageExt;
import org.apache.rocketmq.common.message.MessageQueue;

/** Reads a topic once for each of many SQL expressions. */
@SuppressWarnings("deprecation")
final class SqlPull {
    private static final int PULL_SIZE = 8;
    private static final int PAUSE_MS = 100;
    private static final int TRIES = 900;

    private final Options options;

    SqlPull(Options options) {
        this.options = options;
    }

    int run() throws Exception {
        DefaultMQPullConsumer consumer = new DefaultMQPullConsumer(options.text("group"));
        consumer.setNamesrvAddr(options.text("namesrv"));
        consumer.setMqClientApiTimeout(Options.API_TIMEOUT_MS);
        consumer.start();
        for (String expression : options.text("expressions").split("\f")) {
            for (MessageQueue queue : consumer.fetchSubscribeMessageQueues(options.text("topic"))) {
                drain(consumer, queue, expression);
            }
        }
        consumer.shutdown();
        return Main.STATUS_DONE;
    }

    private static void drain(DefaultMQPullConsumer consumer, MessageQueue queue, String expression)
            throws Exception {
        MessageSelector selector = MessageSelector.bySql(expression);
        long end = consumer.maxOffset(queue);
        long offset = consumer.minOffset(queue);
        while (offset < end) {
            PullResult result = pull(consumer, queue, selector, offset);
            if (result.getPullStatus() == PullStatus.FOUND) {
                for (MessageExt message : result.getMsgFoundList()) {
                    new Event("matched")
                        .with("expression", expression)
                        .with("key", message.getKeys())
                        .print();
                }
            }
            if (result.getNextBeginOffset() <= offset) {
                throw new IllegalStateException("no progress in " + queue + ": " + result);
            }
            offset = result.getNextBeginOffset();
        }
    }

    /** The heartbeat, a second after the start or 30 s later, shows what the broker supports. */
    private static PullResult pull(DefaultMQPullConsumer consumer, MessageQueue queue,
            MessageSelector selector, long offset) throws Exception {
        for (int tries = 1; ; tries++) {
            try {
                return consumer.pull(queue, selector, offset, PULL_SIZE);
            } catch (MQClientException e) {
                if (tries == TRIES) {
                    throw e;
                }
                Thread.sleep(PAUSE_MS);
            }
        }
    }
}
