// SPDX-License-Identifier: Apache-2.0
package io.cometmq.peers;

import org.apache.camel.ProducerTemplate;
import org.apache.camel.builder.RouteBuilder;
import org.apache.camel.impl.DefaultCamelContext;

/** Sends to an endpoint and receives by a route: camel-rocketmq. */
public final class CamelProgram {
    private CamelProgram() {
    }

    public static void main(String[] arguments) throws Exception {
        String at = System.getProperty("peers.topic") + "?namesrvAddr="
            + System.getProperty("rocketmq.name-server");
        DefaultCamelContext context = new DefaultCamelContext();
        context.addRoutes(new RouteBuilder() {
            @Override
            public void configure() {
                from("rocketmq:" + at + "&consumerGroup=" + System.getProperty("peers.group"))
                    .process(it -> System.out.println("{\"event\":\"received\",\"body\":\""
                        + it.getMessage().getBody(String.class) + "\"}"));
            }
        });
        context.start();
        ProducerTemplate template = context.createProducerTemplate();
        for (int number = 0; number < Integer.getInteger("peers.count"); number++) {
            String body = "camel-" + number;
            template.sendBody("rocketmq:" + at + "&producerGroup=CamelProducer", body);
            System.out.println("{\"event\":\"sent\",\"body\":\"" + body + "\"}");
        }
        Thread.sleep(Long.MAX_VALUE);
    }
}
