#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# rocketmq-client 5.5.0, 4.9.4 and 4.9.3. Producers of 5.x may compress bodies with LZ4 or zstd. A
# consumer of 4.9.3 or older that pulls such a message drops it and every message behind it in the
# same answer, without an exception: the decoder returns what came before, and the offset moves past
# all of them. 4.9.4, the last of its line, reads all three formats.
. "$(dirname "$0")/common.sh"
maven_packages older org.apache.rocketmq:rocketmq-client:4.9.3
maven_packages old org.apache.rocketmq:rocketmq-client:4.9.4
maven_packages new org.apache.rocketmq:rocketmq-client:5.5.0
cat >Write.java <<'JAVA'
import java.net.InetSocketAddress;
import java.nio.ByteBuffer;
import java.nio.file.Files;
import java.nio.file.Path;
import org.apache.rocketmq.common.compression.CompressionType;
import org.apache.rocketmq.common.compression.CompressorFactory;
import org.apache.rocketmq.common.message.MessageDecoder;
import org.apache.rocketmq.common.message.MessageExt;
import org.apache.rocketmq.common.sysflag.MessageSysFlag;

public class Write {
    public static void main(String[] arguments) throws Exception {
        ByteBuffer all = ByteBuffer.allocate(1 << 20);
        CompressionType type = CompressionType.valueOf(arguments[1]);
        for (int i = 0; i < 3; i++) {
            MessageExt message = new MessageExt();
            message.setTopic("t");
            message.setBody(new byte[8192]);
            message.setBornHost(new InetSocketAddress("127.0.0.1", 1));
            message.setStoreHost(new InetSocketAddress("127.0.0.1", 1));
            message.setQueueOffset(i);
            if (i == 1) {
                byte[] packed = CompressorFactory.getCompressor(type).compress(message.getBody(), 5);
                message.setBody(packed);
                message.setSysFlag(MessageSysFlag.COMPRESSED_FLAG | type.getCompressionFlag());
            }
            all.put(MessageDecoder.encode(message, false));
        }
        all.flip();
        byte[] bytes = new byte[all.remaining()];
        all.get(bytes);
        Files.write(Path.of(arguments[0]), bytes);
    }
}
JAVA
cat >Read.java <<'JAVA'
import java.nio.ByteBuffer;
import java.nio.file.Files;
import java.nio.file.Path;
import org.apache.rocketmq.common.message.MessageDecoder;
import org.apache.rocketmq.common.message.MessageExt;

public class Read {
    public static void main(String[] arguments) throws Exception {
        StringBuilder seen = new StringBuilder();
        for (MessageExt it : MessageDecoder.decodes(ByteBuffer.wrap(Files.readAllBytes(Path.of(arguments[0]))))) {
            seen.append(it.getQueueOffset()).append(" ");
        }
        System.out.println(seen.toString().trim());
    }
}
JAVA
mkdir in4 in5
javac -d in5 -cp "$new" Write.java
javac -d in4 -cp "$old" Read.java
for type in ZLIB LZ4 ZSTD; do java -cp "in5:$new" Write $type $type; done
offsets() { java -cp "in4:$1" Read "$2" 2>log; }
expect "4.9.3, the second of three messages in zlib" "0 1 2" "$(offsets "$older" ZLIB)"
expect "4.9.3, in LZ4" 0 "$(offsets "$older" LZ4)"
expect "4.9.3, in zstd" 0 "$(offsets "$older" ZSTD)"
expect "4.9.4, in LZ4" "0 1 2" "$(offsets "$old" LZ4)"
