/* SPDX-License-Identifier: Apache-2.0 */
/* Transactions like the Java producer's, in a closed loop: a half message is sent; once it is
 * stored, its end, which gets no answer, and the next half message are sent. With --leave-open no
 * ends are sent. Headers are JSON. The latency is that of the half message; only the server knows
 * whether the ends took effect. */
#include <errno.h>
#include <fcntl.h>
#include <getopt.h>
#include <inttypes.h>
#include <string.h>
#include <sys/epoll.h>

#include "counters.h"
#include "frames.h"
#include "sockets.h"

enum { EVENTS = 64, INPUT_BYTES = 64 * 1024, OUTPUT_BYTES = 256 * 1024, END_TRANSACTION = 37,
       ID_DIGITS = 32, OFFSET_DIGITS = 16, QUEUES = 4, IN_FLIGHT_MAX = 128 };

static const char USAGE[] = "usage: transact --port N [--connections N] [--in-flight N]\n"
                            "  [--topic T] [--group G] [--seconds S] [--warmup S] [--count PAIRS] [--leave-open]\n";

struct options {
    int port;
    int connections;
    int in_flight;
    const char *topic;
    const char *group;
    double seconds;
    double warmup;
    uint64_t count;
    bool leaves_open;
};

struct connection {
    int fd;
    uint32_t generation;
    uint64_t began_ns[IN_FLIGHT_MAX]; /* by slot: opaque modulo in_flight; 0: free */
    size_t size;
    size_t unsent;
    uint8_t input[INPUT_BYTES];
    uint8_t output[OUTPUT_BYTES];
};

static struct options options = {.connections = 8, .in_flight = 8, .topic = "BENCH_transactions",
                                 .group = "BENCH_GROUP", .seconds = 5.0};
static struct template templates[QUEUES];
static struct connection *connections;
static struct counters counters;
static uint64_t begun;
static uint64_t open_count;
static bool is_stopping;

static void parse(int argc, char **argv) {
    static const struct option LONG[] = {
        {"port", required_argument, NULL, 'p'},    {"connections", required_argument, NULL, 'c'},
        {"in-flight", required_argument, NULL, 'f'},
        {"topic", required_argument, NULL, 't'},   {"group", required_argument, NULL, 'g'},
        {"seconds", required_argument, NULL, 'd'}, {"warmup", required_argument, NULL, 'w'},
        {"count", required_argument, NULL, 'k'},   {"leave-open", no_argument, NULL, 'o'},
        {NULL, 0, NULL, 0},
    };
    for (int name; (name = getopt_long(argc, argv, "", LONG, NULL)) != -1;) {
        switch (name) {
        case 'p': options.port = atoi(optarg); break;
        case 'c': options.connections = atoi(optarg); break;
        case 'f': options.in_flight = atoi(optarg); break;
        case 't': options.topic = optarg; break;
        case 'g': options.group = optarg; break;
        case 'd': options.seconds = atof(optarg); break;
        case 'w': options.warmup = atof(optarg); break;
        case 'k': options.count = strtoull(optarg, NULL, 10); break;
        case 'o': options.leaves_open = true; break;
        default: options.port = 0;
        }
    }
    if (options.port <= 0 || options.connections <= 0 || options.in_flight <= 0 ||
        options.in_flight > IN_FLIGHT_MAX ||
        strlen(options.group) > PROPERTIES_BYTES_MAX / 2) {
        fputs(USAGE, stderr);
        exit(2);
    }
}

/* The output of one turn always fits into the socket: each slot has one request in flight. */
static void flush(struct connection *connection) {
    const size_t size = connection->unsent;
    connection->unsent = 0;
    if (size > 0 && send(connection->fd, connection->output, size, MSG_NOSIGNAL) != (ssize_t)size) {
        fail("send");
    }
}

static uint8_t *room(struct connection *connection, size_t size) {
    if (OUTPUT_BYTES - connection->unsent < size) {
        flush(connection);
    }
    return connection->output + connection->unsent;
}

static void begin(struct connection *connection, uint32_t slot, uint64_t now_ns) {
    if (is_stopping || (options.count != 0 && begun == options.count)) {
        return;
    }
    struct template *template = &templates[begun % QUEUES];
    const uint32_t in_flight = (uint32_t)options.in_flight;
    const uint32_t generations = OPAQUE_BASE / in_flight;
    connection->began_ns[slot] = now_ns;
    template_patch(template,
                   OPAQUE_BASE / in_flight * in_flight + in_flight +
                       connection->generation++ % generations * in_flight + slot,
                   clock_ns(CLOCK_REALTIME) / 1000000, begun++);
    memcpy(room(connection, template->size), template->bytes, template->size);
    connection->unsent += template->size;
    open_count++;
}

/* The commit log offset is the second half of the offset message id. */
static uint64_t log_offset(const struct reply *reply) {
    static const char MARK[] = "\"msgId\":\"";
    const uint8_t *found = memmem(reply->header, reply->header_bytes, MARK, strlen(MARK));
    const uint8_t *end = reply->header + reply->header_bytes;
    char digits[OFFSET_DIGITS + 1] = "";
    if (found == NULL || found + strlen(MARK) + ID_DIGITS > end) {
        fputs("transact: an answer without msgId\n", stderr);
        exit(1);
    }
    memcpy(digits, found + strlen(MARK) + ID_DIGITS - OFFSET_DIGITS, OFFSET_DIGITS);
    return strtoull(digits, NULL, 16);
}

static void end(struct connection *connection, const struct reply *reply) {
    static const char FLAG[] = "\"flag\":0";
    char table_offset[24];
    char commit_log_offset[24];
    snprintf(table_offset, sizeof table_offset, "%" PRId64, reply_number(reply, "queueOffset"));
    snprintf(commit_log_offset, sizeof commit_log_offset, "%" PRIu64, log_offset(reply));
    const struct field fields[] = {
        {"producerGroup", options.group},  {"tranStateTableOffset", table_offset},
        {"commitLogOffset", commit_log_offset}, {"commitOrRollback", "8"},
        {"fromTransactionCheck", "false"}, {"msgId", "0"},
    };
    const struct request request = {SERIALIZATION_JSON, END_TRANSACTION, OPAQUE_BASE,
                                    fields, sizeof fields / sizeof fields[0], NULL, 0};
    uint8_t *out = room(connection, 1024);
    const size_t size = frame_build(&request, out);
    uint8_t *flag = memmem(out, size, FLAG, strlen(FLAG));
    flag[strlen(FLAG) - 1] = '2'; /* oneway: no answer */
    connection->unsent += size;
}

static void take_reply(struct connection *connection, const struct reply *reply, uint64_t now_ns) {
    if (!reply->is_response) {
        return;
    }
    const uint32_t slot = reply->opaque % (uint32_t)options.in_flight;
    if (connection->began_ns[slot] == 0) {
        fprintf(stderr, "transact: answer to unknown opaque %u\n", reply->opaque);
        exit(1);
    }
    const bool is_success = reply->code == REPLY_SUCCESS;
    if (is_success && !options.leaves_open) {
        end(connection, reply);
    }
    counters_add(&counters, reply->code, now_ns - connection->began_ns[slot]);
    connection->began_ns[slot] = 0;
    *(is_success ? &counters.messages : &counters.errors) += 1;
    open_count--;
    begin(connection, slot, now_ns);
}

static void serve(struct connection *connection, uint64_t now_ns) {
    const ssize_t got = recv(connection->fd, connection->input + connection->size,
                             INPUT_BYTES - connection->size, 0);
    if (got <= 0) {
        fail("transact: connection lost");
    }
    connection->size += (size_t)got;
    size_t at = 0;
    for (;;) {
        const size_t size = frame_size(connection->input + at, connection->size - at);
        struct reply reply;
        if (size == 0 || size > connection->size - at) {
            break;
        }
        if (!reply_parse(connection->input + at, size, &reply)) {
            fputs("transact: malformed answer\n", stderr);
            exit(1);
        }
        take_reply(connection, &reply, now_ns);
        at += size;
    }
    connection->size -= at;
    memmove(connection->input, connection->input + at, connection->size);
    flush(connection);
}

static void run_until(int epoll, uint64_t end_ns) {
    struct epoll_event events[EVENTS];
    for (uint64_t now_ns = monotonic_ns(); now_ns < end_ns && open_count > 0;) {
        const int count = epoll_wait(epoll, events, EVENTS, 100);
        if (count < 0 && errno != EINTR) {
            fail("epoll_wait");
        }
        now_ns = monotonic_ns();
        for (int i = 0; i < count; i++) {
            serve(events[i].data.ptr, now_ns);
        }
    }
}

static int start(void) {
    char properties[PROPERTIES_BYTES_MAX + 1];
    const uint64_t producer = clock_ns(CLOCK_REALTIME) ^ (uint64_t)getpid() << 48;
    snprintf(properties, sizeof properties, "TRAN_MSG=true,PGROUP=%s", options.group);
    for (int queue_id = 0; queue_id < QUEUES; queue_id++) {
        const struct send_options send = {SERIALIZATION_JSON, options.group, options.topic,
                                          queue_id, 128, producer, properties};
        templates[queue_id] = send_template(&send);
    }
    const int epoll = epoll_create1(EPOLL_CLOEXEC);
    connections = calloc((size_t)options.connections, sizeof *connections);
    for (int i = 0; i < options.connections; i++) {
        struct epoll_event event = {.events = EPOLLIN, .data.ptr = &connections[i]};
        connections[i].fd = socket_connect("127.0.0.1", options.port);
        if (connections[i].fd < 0 ||
            epoll_ctl(epoll, EPOLL_CTL_ADD, connections[i].fd, &event) != 0) {
            fail("connect");
        }
        for (int slot = 0; slot < options.in_flight; slot++) {
            begin(&connections[i], (uint32_t)slot, monotonic_ns());
        }
        flush(&connections[i]);
    }
    return epoll;
}

int main(int argc, char **argv) {
    parse(argc, argv);
    const int epoll = start();
    run_until(epoll, monotonic_ns() + (uint64_t)(options.warmup * 1e9));
    const struct counters warmed_up = counters;
    counters_clear(&counters);
    const double cpu_before = cpu_seconds();
    const uint64_t start_ns = monotonic_ns();
    run_until(epoll, options.count != 0 ? UINT64_MAX
                                        : start_ns + (uint64_t)(options.seconds * 1e9));
    const struct counters counted = counters;
    const double seconds = (double)(monotonic_ns() - start_ns) / 1e9;
    const double cpu = cpu_seconds() - cpu_before;
    is_stopping = true;
    run_until(epoll, UINT64_MAX);
    const struct report report = {
        .mode = options.leaves_open ? "half" : "transact",
        .seconds = seconds,
        .generator_cpu_seconds = cpu,
        .messages_in_all = warmed_up.messages + counters.messages,
        .errors_in_all = warmed_up.errors + counters.errors,
    };
    report_print(&report, &counted, counters.by_code);
    return 0;
}
