#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# rocketmq-broker 5.5.0. `mqadmin updateTopicList` creates or changes the topics of a file. If one of
# them is already as the file says, the broker takes the whole list for a repetition: it answers
# success and creates none of the others, wherever they stand in the list.
. "$(dirname "$0")/common.sh"
maven_packages server org.apache.rocketmq:rocketmq-broker:5.5.0 org.apache.rocketmq:rocketmq-tools:5.5.0
export ROCKETMQ_HOME=$folder
port=$(python3 -c 'import random; print(random.randrange(12000, 30000))')
cat >broker.conf <<CONF
brokerIP1=127.0.0.1
listenPort=$port
storePathRootDir=$folder/store
mappedFileSizeCommitLog=1048576
CONF
echo '<configuration/>' >log.xml
command=(java -Xmx512m "-Duser.home=$folder" -Drmq.logback.configurationFile=log.xml -cp "$server")
"${command[@]}" org.apache.rocketmq.broker.BrokerStartup -c broker.conf >broker.log 2>&1 &
timeout 120 sh -c 'until grep -qs "boot success" broker.log; do sleep 1; done'
# create NAME...: ask for these topics with one list, and print what mqadmin says.
create() {
    printf '{"topicName":"%s"}\n' "$@" | paste -sd, | sed 's/.*/[&]/' >topics
    "${command[@]}" org.apache.rocketmq.tools.command.MQAdminStartup updateTopicList -n 127.0.0.1:1 -b "127.0.0.1:$port" -f topics 2>&1 |
        grep -o success
}
topics() { grep -o '"New[A-Z]*":' store/config/topics.json | sort | tr -d '":\n'; }
expect "a list of a new topic" "success NewA" "$(create NewA) $(topics)"
expect "new topics before and after it" "success NewA" "$(create NewB NewA NewC) $(topics)"
expect "the new topics alone" "success NewANewBNewC" "$(create NewB NewC) $(topics)"
