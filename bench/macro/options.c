/* SPDX-License-Identifier: Apache-2.0 */
/* Command line of the load generator: `--name value` pairs, each with a default. */
#include "options.h"

#include <getopt.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const char *const MODES[] = {"send", "pull", "orderly", "first-send", "first-pull"};
static const char USAGE[] =
    "usage: loadgen --mode send|pull|orderly|first-send|first-pull --port N [--host ADDRESS]\n"
    "  [--connections N] [--in-flight N] [--queues N] [--body-bytes N] [--topic T] [--topics N]\n"
    "  [--group G] [--groups N] [--properties NAME=VALUE,..] [--registered] [--broker-name B]\n"
    "  [--serialization json|rocketmq] [--seconds S] [--warmup S] [--count MESSAGES]\n"
    "  [--rate MESSAGES_PER_S] [--timeout S] [--namesrv-port N]\n"
    "  [--access-key K --secret-key S] [--tls]\n";

enum { RATE_MAX = 1000000 };

static const struct option LONG[] = {
    {"mode", required_argument, NULL, 'm'},        {"host", required_argument, NULL, 'h'},
    {"port", required_argument, NULL, 'p'},        {"namesrv-port", required_argument, NULL, 'n'},
    {"connections", required_argument, NULL, 'c'}, {"in-flight", required_argument, NULL, 'f'},
    {"queues", required_argument, NULL, 'q'},      {"body-bytes", required_argument, NULL, 'b'},
    {"topic", required_argument, NULL, 't'},       {"group", required_argument, NULL, 'g'},
    {"serialization", required_argument, NULL, 's'}, {"seconds", required_argument, NULL, 'd'},
    {"warmup", required_argument, NULL, 'w'},      {"count", required_argument, NULL, 'k'},
    {"timeout", required_argument, NULL, 'o'},     {"rate", required_argument, NULL, 'r'},
    {"topics", required_argument, NULL, 'T'},      {"groups", required_argument, NULL, 'G'},
    {"properties", required_argument, NULL, 'P'},  {"registered", no_argument, NULL, 'R'},
    {"broker-name", required_argument, NULL, 'B'}, {"access-key", required_argument, NULL, 'A'},
    {"secret-key", required_argument, NULL, 'S'},  {"tls", no_argument, NULL, 'L'},
    {NULL, 0, NULL, 0},
};

static void refuse(void) {
    fputs(USAGE, stderr);
    exit(2);
}

static enum mode mode_named(const char *name) {
    for (size_t i = 0; i < sizeof MODES / sizeof MODES[0]; i++) {
        if (strcmp(name, MODES[i]) == 0) {
            return (enum mode)i;
        }
    }
    refuse();
    return MODE_SEND;
}

static void set_option(struct options *options, int name, const char *value) {
    switch (name) {
    case 'm': options->mode = mode_named(value); break;
    case 'h': options->host = value; break;
    case 'p': options->port = atoi(value); break;
    case 'n': options->namesrv_port = atoi(value); break;
    case 'c': options->connections = atoi(value); break;
    case 'f': options->in_flight = atoi(value); break;
    case 'q': options->queues = atoi(value); break;
    case 'b': options->body_bytes = (size_t)atol(value); break;
    case 't': options->topic = value; break;
    case 'g': options->group = value; break;
    case 's': options->serialization = strcmp(value, "json") == 0 ? SERIALIZATION_JSON
                                                                  : SERIALIZATION_ROCKETMQ; break;
    case 'd': options->seconds = atof(value); break;
    case 'w': options->warmup = atof(value); break;
    case 'k': options->count = strtoull(value, NULL, 10); break;
    case 'o': options->timeout = atof(value); break;
    case 'r': options->rate = atoi(value); break;
    case 'T': options->topics = atoi(value); break;
    case 'G': options->groups = atoi(value); break;
    case 'P': options->properties = value; break;
    case 'R': options->is_registered = true; break;
    case 'B': options->broker_name = value; break;
    case 'A': options->access_key = value; break;
    case 'S': options->secret_key = value; break;
    case 'L': options->uses_tls = true; break;
    default: refuse();
    }
}

struct options options_parse(int argc, char **argv) {
    struct options options = {
        .mode = MODE_SEND, .host = "127.0.0.1", .connections = 1, .in_flight = 1, .queues = 4,
        .body_bytes = 128, .topic = "BENCH", .group = "BENCH_GROUP",
        .topics = 1, .groups = 1, .properties = "", .broker_name = "broker-a",
        .access_key = "", .secret_key = "",
        .serialization = SERIALIZATION_ROCKETMQ, .seconds = 5.0, .timeout = 30.0,
    };
    for (int name; (name = getopt_long(argc, argv, "", LONG, NULL)) != -1;) {
        set_option(&options, name, optarg);
    }
    options.mode_name = MODES[options.mode];
    if (options.port <= 0 || options.connections <= 0 || options.in_flight <= 0 ||
        options.queues <= 0 || options.topics <= 0 || options.groups <= 0 ||
        options.rate < 0 || options.rate > RATE_MAX ||
        (options.rate > 0 && (options.mode != MODE_SEND || options.count != 0)) ||
        strlen(options.properties) > PROPERTIES_BYTES_MAX || options.body_bytes > FRAME_BYTES_MAX / 2) {
        refuse();
    }
    return options;
}
