#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# rocketmq-common 4.9.4 and 5.5.0. A unique key holds the milliseconds since its month began, without the
# month. getNearlyTimeFromID, where mqadmin queryMsgByUniqueKey begins its search, takes the newest month
# that fits. For a message of 70 days ago this is two months too late: the broker finds nothing, although
# it has the message and its key.
. "$(dirname "$0")/common.sh"
cat >Ages.java <<'JAVA'
import java.util.Calendar;
import org.apache.rocketmq.common.message.MessageClientIDSetter;

public class Ages {
    public static void main(String[] days) {
        StringBuilder seen = new StringBuilder();
        for (String it : days) {
            Calendar sent = Calendar.getInstance();
            sent.add(Calendar.DAY_OF_MONTH, -Integer.parseInt(it));
            Calendar month = (Calendar) sent.clone();
            month.set(Calendar.DAY_OF_MONTH, 1);
            for (int field : new int[] {Calendar.HOUR_OF_DAY, Calendar.MINUTE, Calendar.SECOND, Calendar.MILLISECOND}) {
                month.set(field, 0);
            }
            String now = MessageClientIDSetter.createUniqID();
            String since = String.format("%08X", (int) (sent.getTimeInMillis() - month.getTimeInMillis()));
            String key = now.substring(0, now.length() - 12) + since + now.substring(now.length() - 4);
            long late = MessageClientIDSetter.getNearlyTimeFromID(key).getTime() - sent.getTimeInMillis();
            seen.append(late > 27 * 86_400_000L ? "late " : Math.abs(late) < 86_400_000L ? "right " : "early ");
        }
        System.out.println(seen.toString().trim());
    }
}
JAVA
for version in 4.9.4 5.5.0; do
    maven_packages common "org.apache.rocketmq:rocketmq-common:$version"
    javac -cp "$common" Ages.java
    expect "$version: sent now, 1, 70 and 400 days ago" "right right late late" "$(java -cp ".:$common" Ages 0 1 70 400 2>log)"
done
