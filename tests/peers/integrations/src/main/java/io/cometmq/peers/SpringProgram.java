// SPDX-License-Identifier: Apache-2.0
package io.cometmq.peers;

import org.apache.rocketmq.spring.annotation.RocketMQMessageListener;
import org.apache.rocketmq.spring.core.RocketMQListener;
import org.apache.rocketmq.spring.core.RocketMQTemplate;
import org.springframework.boot.SpringApplication;
import org.springframework.boot.autoconfigure.SpringBootApplication;
import org.springframework.stereotype.Component;

/** Sends with a template and receives with a listener: --topic, --group, rocketmq.name-server. */
@SpringBootApplication
public class SpringProgram {
    public static void main(String[] arguments) {
        RocketMQTemplate template =
            SpringApplication.run(SpringProgram.class, arguments).getBean(RocketMQTemplate.class);
        String topic = System.getProperty("peers.topic");
        for (int number = 0; number < Integer.getInteger("peers.count"); number++) {
            String body = "spring-" + number;
            template.syncSend(topic + ":TagA", body, 30_000);
            System.out.println("{\"event\":\"sent\",\"body\":\"" + body + "\"}");
        }
    }

    /** Prints what it receives. */
    @Component
    @RocketMQMessageListener(topic = "${peers.topic}", consumerGroup = "${peers.group}")
    public static class Listener implements RocketMQListener<String> {
        @Override
        public void onMessage(String body) {
            System.out.println("{\"event\":\"received\",\"body\":\"" + body + "\"}");
        }
    }
}
