#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# rocketmq-tools 5.5.0. `mqadmin updateTopic -a +k=v` sets attributes of a topic. The sibling
# command for groups has attributes, too, but there -a is the flag notifyConsumerIdsChanged:
# `updateSubGroup -a +k=v` is accepted, sets no attribute, and turns that flag off, because the text
# is not "true". Attributes of groups need the long option.
. "$(dirname "$0")/common.sh"
maven_packages tools org.apache.rocketmq:rocketmq-tools:5.5.0
cat >Options_.java <<'JAVA'
import org.apache.commons.cli.CommandLine;
import org.apache.commons.cli.DefaultParser;
import org.apache.commons.cli.Option;
import org.apache.commons.cli.Options;
import org.apache.rocketmq.tools.command.SubCommand;

public class Options_ {
    public static void main(String[] arguments) throws Exception {
        SubCommand command = (SubCommand) Class.forName(arguments[0]).getDeclaredConstructor().newInstance();
        String[] words = {"-b", "127.0.0.1:1", arguments[1], "name", "-a", "+k=v"};
        CommandLine line = new DefaultParser().parse(command.buildCommandlineOptions(new Options()), words);
        for (Option it : line.getOptions()) {
            if ("a".equals(it.getOpt())) {
                System.out.println(it.getLongOpt() + " " + it.getValue());
            }
        }
    }
}
JAVA
javac -cp "$tools" Options_.java
meaning() { java -cp ".:$tools" Options_ "org.apache.rocketmq.tools.command.$1" "$2" 2>log; }
expect "updateTopic -a" "attributes +k=v" "$(meaning topic.UpdateTopicSubCommand -t)"
expect "updateSubGroup -a" "notifyConsumerIdsChanged +k=v" "$(meaning consumer.UpdateSubGroupSubCommand -g)"
