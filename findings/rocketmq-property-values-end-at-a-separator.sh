#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# rocketmq-common 4.9.4 and 5.5.0. Properties are stored as text with U+0001 between name and value and
# U+0002 between properties. putUserProperty takes values that contain them, and the encoder writes them as
# they are: the consumer reads a shorter value, and properties that nobody set, such as KEYS.
. "$(dirname "$0")/common.sh"
cat >Properties.java <<'JAVA'
import java.util.Map;
import java.util.TreeMap;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.common.message.MessageDecoder;

public class Properties {
    public static void main(String[] values) {
        for (String value : values) {
            Message message = new Message("T", new byte[1]);
            message.putUserProperty("note", value);
            String stored = MessageDecoder.messageProperties2String(message.getProperties());
            Map<String, String> read = new TreeMap<>(MessageDecoder.string2messageProperties(stored));
            read.remove("WAIT");
            System.out.println(read);
        }
    }
}
JAVA
for version in 4.9.4 5.5.0; do
    maven_packages common "org.apache.rocketmq:rocketmq-common:$version"
    javac -cp "$common" Properties.java
    expect "$version: read by the consumer" "{note=plain} {KEYS=k, note=a}" \
        "$(java -cp ".:$common" Properties plain "$(printf 'a\002KEYS\001k')" 2>log | tr '\n' ' ' | sed 's/ $//')"
done
