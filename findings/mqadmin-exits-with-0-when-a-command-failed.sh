#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# rocketmq-tools 4.9.4 and 5.5.0. A command of mqadmin that fails, here since no name server listens, and
# one that does not exist, end with status 0: a script that goes on after `mqadmin ... &&` has no proof.
. "$(dirname "$0")/common.sh"
mkdir conf
echo '<configuration/>' >conf/logback_tools.xml
for version in 4.9.4 5.5.0; do
    maven_packages tools "org.apache.rocketmq:rocketmq-tools:$version"
    mqadmin() {
        local status=0
        timeout 60 java -Drocketmq.home.dir="$folder" -cp "$tools" org.apache.rocketmq.tools.command.MQAdminStartup "$@" >log 2>&1 || status=$?
        echo "$status $(grep -o -m 1 -e 'TopicListSubCommand command failed' -e 'sub command [a-z]* not exist' log)"
    }
    expect "$version: no name server" "0 TopicListSubCommand command failed" "$(mqadmin topicList -n 127.0.0.1:1)"
    expect "$version: no such command" "0 sub command topiclists not exist" "$(mqadmin topiclists)"
done
