// SPDX-License-Identifier: Apache-2.0
package org.apache.rocketmq.test.base;

import java.util.ArrayList;
import java.util.List;
import org.apache.rocketmq.client.producer.TransactionListener;
import org.apache.rocketmq.test.client.rmq.RMQAsyncSendProducer;
import org.apache.rocketmq.test.client.rmq.RMQNormalConsumer;
import org.apache.rocketmq.test.client.rmq.RMQNormalProducer;
import org.apache.rocketmq.test.client.rmq.RMQTransactionalProducer;
import org.apache.rocketmq.test.clientinterface.AbstractMQConsumer;
import org.apache.rocketmq.test.clientinterface.AbstractMQProducer;
import org.apache.rocketmq.test.factory.ConsumerFactory;
import org.apache.rocketmq.test.listener.AbstractListener;
import org.apache.rocketmq.test.util.MQAdmin;
import org.apache.rocketmq.test.util.MQRandomUtils;

/**
 * Replaces the class of this name in RocketMQ's tests, which starts servers in the same JVM. This
 * one uses running servers, whose addresses are in system properties.
 */
public class BaseConf {
    private static final int TOPIC_QUEUES = 8;

    public static String nsAddr = System.getProperty("peers.namesrv");
    protected static String clusterName = System.getProperty("peers.cluster");
    protected static String broker1Name = System.getProperty("peers.broker1");
    protected static String broker2Name = System.getProperty("peers.broker2");
    protected static int brokerNum = 2;
    protected static int waitTime = 5;
    protected static int consumeTime = 2 * 60 * 1000;
    protected static List<Object> mqClients = new ArrayList<>();
    protected static boolean debug = false;

    public static String initTopic() {
        return initTopicWithName(MQRandomUtils.getRandomTopic());
    }

    public static String initTopicWithName(String topic) {
        if (!MQAdmin.createTopic(nsAddr, clusterName, topic, TOPIC_QUEUES)) {
            throw new IllegalStateException("topic was not created: " + topic);
        }
        return topic;
    }

    public static String initConsumerGroup() {
        return initConsumerGroup(MQRandomUtils.getRandomConsumerGroup());
    }

    public static String initConsumerGroup(String group) {
        if (!MQAdmin.createSub(nsAddr, clusterName, group)) {
            throw new IllegalStateException("group was not created: " + group);
        }
        return group;
    }

    public static RMQNormalProducer getProducer(String namesrv, String topic) {
        return kept(new RMQNormalProducer(namesrv, topic));
    }

    public static RMQNormalProducer getProducer(String namesrv, String topic, boolean useTls) {
        return kept(new RMQNormalProducer(namesrv, topic, useTls));
    }

    public static RMQNormalProducer getProducer(
        String namesrv, String topic, String group, String instance) {
        return kept(new RMQNormalProducer(namesrv, topic, group, instance));
    }

    public static RMQTransactionalProducer getTransactionalProducer(
        String namesrv, String topic, TransactionListener listener) {
        return kept(new RMQTransactionalProducer(namesrv, topic, false, listener));
    }

    public static RMQAsyncSendProducer getAsyncProducer(String namesrv, String topic) {
        return kept(new RMQAsyncSendProducer(namesrv, topic));
    }

    public static RMQNormalConsumer getConsumer(
        String namesrv, String topic, String expression, AbstractListener listener) {
        return getConsumer(namesrv, topic, expression, listener, false);
    }

    public static RMQNormalConsumer getConsumer(String namesrv, String topic, String expression,
        AbstractListener listener, boolean useTls) {
        return getConsumer(namesrv, initConsumerGroup(), topic, expression, listener, useTls);
    }

    public static RMQNormalConsumer getConsumer(
        String namesrv, String group, String topic, String expression, AbstractListener listener) {
        return getConsumer(namesrv, group, topic, expression, listener, false);
    }

    public static RMQNormalConsumer getConsumer(String namesrv, String group, String topic,
        String expression, AbstractListener listener, boolean useTls) {
        RMQNormalConsumer consumer = ConsumerFactory.getRMQNormalConsumer(
            namesrv, group, topic, expression, listener, useTls);
        mqClients.add(consumer);
        return consumer;
    }

    public static void shutdown() {
        List<Object> clients = new ArrayList<>(mqClients);
        mqClients.clear();
        for (Object client : clients) {
            if (client instanceof AbstractMQProducer) {
                ((AbstractMQProducer) client).shutdown();
            } else if (client instanceof AbstractMQConsumer) {
                ((AbstractMQConsumer) client).shutdown();
            }
        }
    }

    private static <T> T kept(T client) {
        mqClients.add(client);
        return client;
    }
}
