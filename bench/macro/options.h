/* SPDX-License-Identifier: Apache-2.0 */
/* Command line of the load generator. */
#ifndef COMETMQ_BENCH_OPTIONS_H
#define COMETMQ_BENCH_OPTIONS_H

#include "frames.h"

enum mode { MODE_SEND, MODE_PULL, MODE_ORDERLY, MODE_FIRST_SEND, MODE_FIRST_PULL };

struct options {
    enum mode mode;
    const char *mode_name;
    const char *host;
    int port;
    int namesrv_port; /* first-send: wait for the name server's route before sending; 0: do not */
    int connections;
    int in_flight;
    int queues;
    size_t body_bytes;
    const char *topic;
    int topics; /* more than one: send to topic_0000, topic_0001 and so on */
    const char *group;
    int groups; /* more than one: pull as group_0, group_1 and so on */
    const char *properties; /* NAME=VALUE,NAME=VALUE; a # becomes a digit that changes */
    bool is_registered; /* pull by the subscription of the group's heartbeats, as clients do */
    const char *broker_name; /* orderly: the broker name in the locks */
    const char *access_key; /* signs all requests; empty: none */
    const char *secret_key;
    bool uses_tls; /* send, pull, orderly */
    enum serialization serialization;
    int rate; /* send: messages per second, sent when they are due; 0: as fast as answers arrive */
    double seconds; /* measured time, after the warm-up; SIGINT ends it early */
    double warmup;
    uint64_t count;   /* number of messages to send; 0: send for `seconds` */
    double timeout;   /* seconds without an answer before giving up */
};

/* Parse the options; explain a mistake and exit with status 2. */
struct options options_parse(int argc, char **argv);

#endif
