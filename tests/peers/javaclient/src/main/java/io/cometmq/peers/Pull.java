// SPDX-License-Identifier: Apache-2.0
package io.cometmq.peers;

import java.util.List;
import org.apache.rocketmq.client.consumer.DefaultLitePullConsumer;
import org.apache.rocketmq.client.consumer.DefaultMQPullConsumer;
import org.apache.rocketmq.client.consumer.PullResult;
import org.apache.rocketmq.client.consumer.PullStatus;
import org.apache.rocketmq.common.consumer.ConsumeFromWhere;
import org.apache.rocketmq.common.message.MessageExt;
import org.apache.rocketmq.common.message.MessageQueue;

/** The two pull consumers: by subscription, and queue by queue. */
@SuppressWarnings("deprecation")
final class Pull {
    private static final int PULL_SIZE = 32;
    private static final int POLL_MS = 500;

    private final Options options;

    Pull(Options options) {
        this.options = options;
    }

    int runLite() throws Exception {
        DefaultLitePullConsumer consumer = new DefaultLitePullConsumer(options.text("group"));
        consumer.setNamesrvAddr(options.text("namesrv"));
        consumer.setMqClientApiTimeout(Options.API_TIMEOUT_MS);
        consumer.setConsumeFromWhere(ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET);
        consumer.subscribe(options.text("topic"), options.text("tags", "*"));
        consumer.start();
        new Event("started").print();
        int left = options.number("count", 1);
        long deadline = System.nanoTime() + options.number("timeout-s", 60) * 1_000_000_000L;
        while (left > 0 && System.nanoTime() < deadline) {
            for (MessageExt message : consumer.poll(POLL_MS)) {
                new Event("received").with(message).print();
                left--;
            }
        }
        consumer.commitSync();
        consumer.shutdown();
        return left <= 0 ? Main.STATUS_DONE : Main.STATUS_DEADLINE;
    }

    int runPlain() throws Exception {
        DefaultMQPullConsumer consumer = new DefaultMQPullConsumer(options.text("group"));
        consumer.setNamesrvAddr(options.text("namesrv"));
        consumer.setMqClientApiTimeout(Options.API_TIMEOUT_MS);
        consumer.start();
        for (String topic : options.text("topic").split(",")) {
            for (MessageQueue queue : consumer.fetchSubscribeMessageQueues(topic)) {
                drain(consumer, queue);
            }
        }
        consumer.shutdown();
        return Main.STATUS_DONE;
    }

    private void drain(DefaultMQPullConsumer consumer, MessageQueue queue) throws Exception {
        long offset = consumer.minOffset(queue);
        while (offset < consumer.maxOffset(queue)) {
            PullResult result = consumer.pull(queue, options.text("tags", "*"), offset, PULL_SIZE);
            if (result.getPullStatus() == PullStatus.FOUND) {
                print(result.getMsgFoundList());
            }
            if (result.getNextBeginOffset() <= offset) {
                throw new IllegalStateException("no progress in " + queue + ": " + result);
            }
            offset = result.getNextBeginOffset();
        }
    }

    private static void print(List<MessageExt> messages) {
        for (MessageExt message : messages) {
            new Event("received").with(message).print();
        }
    }
}
