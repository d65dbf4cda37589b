#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# rocketmq-remoting 4.9.4 (fastjson 1) and 5.5.0 (fastjson2), the body of RESET_CONSUMER_CLIENT_OFFSET:
# a map from queues to offsets. 4.9.4 writes the keys as objects, which is not JSON. Both read that.
# The same table in strict JSON, with keys that are strings of JSON, is read by 4.9.4 only: 5.5.0
# raises an exception. A broker that writes valid JSON cannot reset a consumer of 5.5.0.
. "$(dirname "$0")/common.sh"
maven_packages old org.apache.rocketmq:rocketmq-client:4.9.4
maven_packages new org.apache.rocketmq:rocketmq-client:5.5.0
cat >Read.java <<'JAVA'
public class Read {
    public static void main(String[] arguments) throws Exception {
        String queue = "{\"brokerName\":\"b\",\"queueId\":0,\"topic\":\"t\"}";
        String key = arguments[1].equals("strict") ? "\"" + queue.replace("\"", "\\\"") + "\"" : queue;
        byte[] body = ("{\"offsetTable\":{" + key + ":7}}").getBytes("UTF-8");
        Class<?> type = Class.forName(arguments[0] + ".ResetOffsetBody");
        Class<?> serializable = Class.forName("org.apache.rocketmq.remoting.protocol.RemotingSerializable");
        try {
            Object read = serializable.getMethod("decode", byte[].class, Class.class).invoke(null, body, type);
            java.util.Map<?, ?> table = (java.util.Map<?, ?>) type.getMethod("getOffsetTable").invoke(read);
            Object first = table.keySet().iterator().next();
            System.out.println(first.getClass().getSimpleName() + " " + table.values().iterator().next());
        } catch (java.lang.reflect.InvocationTargetException refused) {
            System.out.println("refused by " + refused.getCause().getClass().getSimpleName());
        }
    }
}
JAVA
javac -cp "$old" Read.java
read_() { java -cp ".:$1" Read "$2" "$3" 2>log; }
v4=org.apache.rocketmq.common.protocol.body v5=org.apache.rocketmq.remoting.protocol.body
expect "4.9.4, keys as objects" "MessageQueue 7" "$(read_ "$old" $v4 objects)"
expect "4.9.4, strict JSON" "MessageQueue 7" "$(read_ "$old" $v4 strict)"
expect "5.5.0, keys as objects" "MessageQueue 7" "$(read_ "$new" $v5 objects)"
expect "5.5.0, strict JSON" "refused by JSONException" "$(read_ "$new" $v5 strict)"
