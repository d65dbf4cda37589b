// SPDX-License-Identifier: Apache-2.0
package io.cometmq.peers;

import java.nio.charset.StandardCharsets;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.TimeUnit;
import org.apache.rocketmq.acl.common.AclClientRPCHook;
import org.apache.rocketmq.acl.common.SessionCredentials;
import org.apache.rocketmq.client.consumer.DefaultMQPullConsumer;
import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.apache.rocketmq.client.consumer.listener.ConsumeConcurrentlyStatus;
import org.apache.rocketmq.client.consumer.listener.MessageListenerConcurrently;
import org.apache.rocketmq.client.consumer.rebalance.AllocateMessageQueueAveragely;
import org.apache.rocketmq.client.exception.MQBrokerException;
import org.apache.rocketmq.client.exception.MQClientException;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.common.TopicConfig;
import org.apache.rocketmq.common.consumer.ConsumeFromWhere;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.common.message.MessageQueue;
import org.apache.rocketmq.remoting.RPCHook;
import org.apache.rocketmq.tools.admin.DefaultMQAdminExt;

/**
 * Tests the rights of accounts: runs steps "verb account topic [group]", separated by ";", and
 * prints an event with each outcome. Accounts are "name=accessKey:secretKey[:token]", separated by
 * ",".
 */
@SuppressWarnings("deprecation")
final class Acl {
    private static final int CONSUME_TIMEOUT_S = 120;
    private static final String KEY = "AclKey";

    private final Options options;
    private final Map<String, SessionCredentials> accounts = new HashMap<>();
    private int number;

    Acl(Options options) {
        this.options = options;
        for (String account : options.text("accounts").split(",")) {
            String[] parts = account.split("[=:]");
            accounts.put(parts[0], parts.length > 3
                ? new SessionCredentials(parts[1], parts[2], parts[3])
                : new SessionCredentials(parts[1], parts[2]));
        }
    }

    int run() {
        for (String step : options.text("steps").split(";")) {
            String outcome;
            try {
                outcome = outcome(step.split(" "));
            } catch (Exception e) {
                outcome = described(e);
            }
            new Event("outcome").with("step", step).with("outcome", outcome).print();
        }
        return Main.STATUS_DONE;
    }

    private String outcome(String[] words) throws Exception {
        RPCHook hook = accounts.containsKey(words[1])
            ? new AclClientRPCHook(accounts.get(words[1])) : null;
        switch (words[0]) {
            case "send":
            case "batch":
            case "traced":
                return send(words[0], words[2], hook);
            case "pull":
                return pull(words[2], words[3], hook);
            case "consume":
                return consume(words[2], words[3], hook);
            case "query":
            case "topic":
                return administrate(words[0], words[2], hook);
            default:
                throw new IllegalArgumentException("verb " + words[0]);
        }
    }

    private String send(String verb, String topic, RPCHook hook) throws Exception {
        String group = "AclProducer" + number++;
        DefaultMQProducer producer = verb.equals("traced")
            ? new DefaultMQProducer(group, hook, true, null) : new DefaultMQProducer(group, hook);
        producer.setNamesrvAddr(options.text("namesrv"));
        producer.setMqClientApiTimeout(Options.API_TIMEOUT_MS);
        producer.setSendMsgTimeout(Options.API_TIMEOUT_MS);
        producer.start();
        try {
            byte[] body = (verb + topic).getBytes(StandardCharsets.UTF_8);
            Message message = new Message(topic, "Tag", KEY, body);
            Object status = verb.equals("batch")
                ? producer.send(List.of(message)).getSendStatus()
                : producer.send(message).getSendStatus();
            // A shutdown loses the traces of the last half second; "stay-s" delays it.
            new CountDownLatch(1).await(options.number("stay-s", 0), TimeUnit.SECONDS);
            return status.toString();
        } finally {
            producer.shutdown();
        }
    }

    private String pull(String topic, String group, RPCHook hook) throws Exception {
        DefaultMQPullConsumer consumer = new DefaultMQPullConsumer(group, hook);
        consumer.setNamesrvAddr(options.text("namesrv"));
        consumer.setMqClientApiTimeout(Options.API_TIMEOUT_MS);
        consumer.start();
        try {
            MessageQueue queue = new MessageQueue(topic, options.text("broker-name"), 0);
            consumer.pull(queue, "*", 0, 1);
            return "pulled";
        } finally {
            consumer.shutdown();
        }
    }

    private String consume(String topic, String group, RPCHook hook) throws Exception {
        CountDownLatch first = new CountDownLatch(1);
        DefaultMQPushConsumer consumer =
            new DefaultMQPushConsumer(group, hook, new AllocateMessageQueueAveragely());
        consumer.setNamesrvAddr(options.text("namesrv"));
        consumer.setMqClientApiTimeout(Options.API_TIMEOUT_MS);
        consumer.setConsumeFromWhere(ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET);
        consumer.subscribe(topic, "*");
        consumer.registerMessageListener((MessageListenerConcurrently) (messages, context) -> {
            first.countDown();
            return ConsumeConcurrentlyStatus.CONSUME_SUCCESS;
        });
        consumer.start();
        try {
            return first.await(CONSUME_TIMEOUT_S, TimeUnit.SECONDS) ? "received" : "nothing";
        } finally {
            consumer.shutdown();
        }
    }

    private String administrate(String verb, String topic, RPCHook hook) throws Exception {
        DefaultMQAdminExt admin = new DefaultMQAdminExt(hook);
        admin.setNamesrvAddr(options.text("namesrv"));
        admin.setMqClientApiTimeout(Options.API_TIMEOUT_MS);
        admin.setInstanceName("acl" + number++);
        admin.start();
        try {
            if (verb.equals("query")) {
                admin.queryMessage(topic, KEY, 8, 0, Long.MAX_VALUE);
            } else {
                admin.createAndUpdateTopicConfig(options.text("broker"),
                    new TopicConfig(topic, 1, 1, 6));
            }
            return "done";
        } finally {
            admin.shutdown();
        }
    }

    /** The broker's answer, if there is one, however deeply the client has wrapped it. */
    private static String described(Throwable error) {
        for (Throwable at = error; at != null; at = at.getCause()) {
            if (at instanceof MQBrokerException) {
                MQBrokerException answer = (MQBrokerException) at;
                return answer.getResponseCode() + " " + answer.getErrorMessage();
            }
        }
        if (error instanceof MQClientException) {
            MQClientException failure = (MQClientException) error;
            return "client " + failure.getResponseCode() + " " + failure.getErrorMessage();
        }
        return error.toString();
    }
}
