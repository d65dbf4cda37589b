#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# rocketmq-filter 4.9.4 and 5.5.0. SQL92 expressions of a consumer may have floating point numbers,
# but not 0.0: the parser compares the value with Double.MIN_VALUE, the smallest positive double, as
# if it were the most negative one. Zero as an integer and other floats pass.
. "$(dirname "$0")/common.sh"
cat >Parse.java <<'JAVA'
import org.apache.rocketmq.filter.parser.SelectorParser;

public class Parse {
    public static void main(String[] expressions) {
        StringBuilder seen = new StringBuilder();
        for (String expression : expressions) {
            try {
                SelectorParser.parse(expression);
                seen.append("parsed ");
            } catch (Exception | Error refused) {
                seen.append("refused ");
            }
        }
        System.out.println(seen.toString().trim());
    }
}
JAVA
for version in 4.9.4 5.5.0; do
    maven_packages filter "org.apache.rocketmq:rocketmq-filter:$version"
    javac -cp "$filter" Parse.java
    expect "$version: a > 1.5, a > 0, a > 0.0" "parsed parsed refused" "$(java -cp ".:$filter" Parse 'a > 1.5' 'a > 0' 'a > 0.0' 2>log)"
done
