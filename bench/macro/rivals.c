/* SPDX-License-Identifier: Apache-2.0 */
/* Load generator for Redis streams and NATS JetStream: loadgen's closed loop of C connections with
 * F appends in flight each, on one thread and one epoll. Redis answers in order; the subject of a
 * NATS answer names its slot. Every answer is checked, and errors are counted. */
#include <errno.h>
#include <getopt.h>
#include <string.h>

#include "counters.h"
#include "streams.h"

enum { EVENTS = 64, NAME_BYTES = 128, PLACES_MAX = 1 << 16 };
enum { INBOX_AT = 4, CONNECTION_DIGITS = 4, SLOT_AT = 9, SLOT_DIGITS = 5 }; /* "MSG NNNN.SSSSS 1 ..." */
enum protocol { REDIS, NATS };

static struct {
    enum protocol protocol;
    int port, connections, in_flight, queues, topics;
    size_t body_bytes;
    const char *topic;
    double seconds, warmup, timeout;
    uint64_t count;
} options = {.connections = 1, .in_flight = 1, .queues = 4, .topics = 1, .body_bytes = 128,
             .topic = "BENCH", .seconds = 5, .timeout = 30};

struct template {
    char *bytes;
    size_t size, inbox_at;
};

struct connection {
    struct stream stream;
    int number, place;
    uint64_t *sent_ns; /* per slot; 0: the slot is free */
    uint32_t oldest;   /* Redis: the slot that is answered next */
};

static struct template *templates;
static struct connection *connections;
static struct counters counters;
static uint64_t issued, open_count;
static bool is_stopping;
static int epoll;

static _Noreturn void stop(const char *reason, const char *text, size_t size) {
    fprintf(stderr, "rivals: %s: %.*s\n", reason, (int)(size < 200 ? size : 200), text);
    exit(1);
}

static void buffer_add(struct buffer *buffer, const char *bytes, size_t size) {
    buffer_reserve(buffer, size);
    memcpy(buffer->bytes + buffer->size, bytes, size);
    buffer->size += size;
}

static void put_digits(char *at, int digits, uint32_t value) {
    for (; digits > 0; digits--, value /= 10) {
        at[digits - 1] = (char)('0' + value % 10);
    }
}

static void issue(struct connection *connection, uint32_t slot, uint64_t now_ns) {
    if (is_stopping || (options.count != 0 && issued == options.count)) {
        return;
    }
    struct template *template = &templates[connection->place];
    connection->place = (connection->place + 1) % (options.queues * options.topics);
    if (options.protocol == NATS) {
        char *inbox = template->bytes + template->inbox_at;
        put_digits(inbox, CONNECTION_DIGITS, (uint32_t)connection->number);
        put_digits(inbox + CONNECTION_DIGITS + 1, SLOT_DIGITS, slot);
    }
    buffer_add(&connection->stream.output, template->bytes, template->size);
    connection->sent_ns[slot] = now_ns;
    issued++;
    open_count++;
}

static void answered(struct connection *connection, uint32_t slot, bool is_stored,
                     uint64_t now_ns) {
    if (slot >= (uint32_t)options.in_flight || connection->sent_ns[slot] == 0) {
        stop("answer to an unknown request", "", 0);
    }
    counters_add(&counters, is_stored ? 0 : 1, now_ns - connection->sent_ns[slot]);
    connection->sent_ns[slot] = 0;
    *(is_stored ? &counters.messages : &counters.errors) += 1;
    open_count--;
    issue(connection, slot, now_ns);
}

/* Return the size of the first line, including its end; 0 if it is incomplete. */
static size_t line_size(const char *bytes, size_t size) {
    const char *end = memchr(bytes, '\n', size);
    return end == NULL ? 0 : (size_t)(end - bytes) + 1;
}

/* Return the size of the first answer; 0 if it is incomplete. */
static size_t take_redis(struct connection *connection, const char *bytes, size_t size,
                         uint64_t now_ns) {
    size_t used = line_size(bytes, size);
    if (used == 0) {
        return 0;
    }
    if (bytes[0] == '$') {
        used += strtoul(bytes + 1, NULL, 10) + 2;
    } else if (bytes[0] != '-') {
        stop("malformed answer", bytes, size);
    }
    if (used > size) {
        return 0;
    }
    const uint32_t slot = connection->oldest;
    connection->oldest = (slot + 1) % (uint32_t)options.in_flight;
    answered(connection, slot, bytes[0] == '$', now_ns);
    return used;
}

static size_t take_nats(struct connection *connection, const char *bytes, size_t size,
                        uint64_t now_ns) {
    static const char STORED[] = "{\"stream\":";
    const size_t head = line_size(bytes, size);
    if (head == 0) {
        return 0;
    }
    if (memcmp(bytes, "PING", 4) == 0) {
        buffer_add(&connection->stream.output, "PONG\r\n", 6);
        return head;
    }
    if (memcmp(bytes, "MSG ", 4) != 0) {
        if (bytes[0] == '-' || bytes[0] == 'H') {
            stop("refused", bytes, head);
        }
        return head; /* INFO or PONG */
    }
    const char *length = memrchr(bytes, ' ', head);
    const size_t payload = strtoul(length + 1, NULL, 10);
    const size_t used = head + payload + 2;
    if (used > size) {
        return 0;
    }
    const bool is_stored = payload > strlen(STORED) &&
                           memcmp(bytes + head, STORED, strlen(STORED)) == 0 &&
                           memmem(bytes + head, payload, "\"error\"", 7) == NULL;
    answered(connection, (uint32_t)strtoul(bytes + SLOT_AT, NULL, 10), is_stored, now_ns);
    return used;
}

static void serve(struct connection *connection, uint32_t events, uint64_t now_ns) {
    if (stream_receive(&connection->stream, events)) {
        struct buffer *input = &connection->stream.input;
        const char *bytes = (const char *)input->bytes;
        size_t at = 0;
        for (size_t used = 1; used > 0 && at < input->size; at += used) {
            used = options.protocol == REDIS
                       ? take_redis(connection, bytes + at, input->size - at, now_ns)
                       : take_nats(connection, bytes + at, input->size - at, now_ns);
        }
        buffer_drop(input, at);
    }
    stream_flush(&connection->stream);
}

static void run_until(uint64_t end_ns) {
    struct epoll_event events[EVENTS];
    uint64_t last_ns = monotonic_ns();
    for (uint64_t now_ns = last_ns; now_ns < end_ns && open_count > 0;) {
        const int count = epoll_wait(epoll, events, EVENTS, 100);
        if (count < 0 && errno != EINTR) {
            fail("epoll_wait");
        }
        now_ns = monotonic_ns();
        if (count > 0) {
            last_ns = now_ns;
        } else if (now_ns - last_ns > (uint64_t)(options.timeout * 1e9)) {
            stop("requests without answer", "", 0);
        }
        for (int i = 0; i < count; i++) {
            serve(events[i].data.ptr, events[i].events, now_ns);
        }
    }
}

/* One Redis stream or NATS subject per queue of each topic. */
static void make_template(int place) {
    struct template *template = &templates[place];
    char name[NAME_BYTES];
    const int queue = place / options.topics;
    if (options.topics == 1) {
        snprintf(name, sizeof name, "%s.%d", options.topic, queue);
    } else {
        snprintf(name, sizeof name, "%s.%04d.%d", options.topic, place % options.topics, queue);
    }
    template->bytes = malloc(2 * NAME_BYTES + options.body_bytes);
    size_t head = 0;
    if (options.protocol == REDIS) {
        head = (size_t)sprintf(template->bytes,
                               "*5\r\n$4\r\nXADD\r\n$%zu\r\n%s\r\n$1\r\n*\r\n$4\r\nbody\r\n$%zu\r\n",
                               strlen(name), name, options.body_bytes);
    } else {
        template->inbox_at = strlen("PUB  ") + strlen(name);
        head = (size_t)sprintf(template->bytes, "PUB %s 0000.00000 %zu\r\n", name,
                               options.body_bytes);
    }
    memset(template->bytes + head, 'x', options.body_bytes);
    memcpy(template->bytes + head + options.body_bytes, "\r\n", 2);
    template->size = head + options.body_bytes + 2;
}

static void open_connection(int number) {
    struct connection *connection = &connections[number];
    stream_open(&connection->stream, "127.0.0.1", options.port, epoll, connection);
    connection->number = number;
    connection->place = number % (options.queues * options.topics);
    connection->sent_ns = calloc((size_t)options.in_flight, sizeof(uint64_t));
    if (options.protocol == NATS) {
        char hello[NAME_BYTES];
        const int size = snprintf(hello, sizeof hello,
                                  "CONNECT {\"verbose\":false,\"pedantic\":false}\r\n"
                                  "SUB %04d.* 1\r\n", number);
        buffer_add(&connection->stream.output, hello, (size_t)size);
    }
    for (int slot = 0; slot < options.in_flight; slot++) {
        issue(connection, (uint32_t)slot, monotonic_ns());
    }
    stream_flush(&connection->stream);
}

static void parse(int argc, char **argv) {
    static const struct option LONG[] = {
        {"protocol", required_argument, NULL, 'P'},    {"port", required_argument, NULL, 'p'},
        {"connections", required_argument, NULL, 'c'}, {"in-flight", required_argument, NULL, 'f'},
        {"queues", required_argument, NULL, 'q'},      {"topics", required_argument, NULL, 'T'},
        {"body-bytes", required_argument, NULL, 'b'},  {"topic", required_argument, NULL, 't'},
        {"seconds", required_argument, NULL, 'd'},     {"warmup", required_argument, NULL, 'w'},
        {"count", required_argument, NULL, 'k'},       {"timeout", required_argument, NULL, 'o'},
        {NULL, 0, NULL, 0},
    };
    for (int name; (name = getopt_long(argc, argv, "", LONG, NULL)) != -1;) {
        switch (name) {
        case 'P': options.protocol = strcmp(optarg, "nats") == 0 ? NATS : REDIS; break;
        case 'p': options.port = atoi(optarg); break;
        case 'c': options.connections = atoi(optarg); break;
        case 'f': options.in_flight = atoi(optarg); break;
        case 'q': options.queues = atoi(optarg); break;
        case 'T': options.topics = atoi(optarg); break;
        case 'b': options.body_bytes = (size_t)atol(optarg); break;
        case 't': options.topic = optarg; break;
        case 'd': options.seconds = atof(optarg); break;
        case 'w': options.warmup = atof(optarg); break;
        case 'k': options.count = strtoull(optarg, NULL, 10); break;
        case 'o': options.timeout = atof(optarg); break;
        default: options.port = 0;
        }
    }
    if (options.port <= 0 || options.connections <= 0 || options.connections > 9999 ||
        options.in_flight <= 0 || options.in_flight > 99999 || options.queues <= 0 ||
        options.topics <= 0 || options.queues * options.topics > PLACES_MAX ||
        strlen(options.topic) > NAME_BYTES / 2) {
        fputs("usage: rivals --protocol redis|nats --port N [--connections N] [--in-flight N]\n"
              "  [--queues N] [--topics N] [--topic T] [--body-bytes N] [--seconds S]\n"
              "  [--warmup S] [--count MESSAGES] [--timeout S]\n", stderr);
        exit(2);
    }
}

int main(int argc, char **argv) {
    parse(argc, argv);
    epoll = epoll_create1(EPOLL_CLOEXEC);
    templates = calloc((size_t)(options.queues * options.topics), sizeof *templates);
    for (int place = 0; place < options.queues * options.topics; place++) {
        make_template(place);
    }
    connections = calloc((size_t)options.connections, sizeof *connections);
    for (int number = 0; number < options.connections; number++) {
        open_connection(number);
    }
    run_until(monotonic_ns() + (uint64_t)(options.warmup * 1e9));
    const struct counters warmed_up = counters;
    counters_clear(&counters);
    const double cpu_before = cpu_seconds();
    const uint64_t start_ns = monotonic_ns();
    run_until(options.count != 0 ? UINT64_MAX : start_ns + (uint64_t)(options.seconds * 1e9));
    const struct counters counted = counters;
    const double seconds = (double)(monotonic_ns() - start_ns) / 1e9;
    const double cpu = cpu_seconds() - cpu_before;
    is_stopping = true;
    run_until(UINT64_MAX); /* wait for the answers to open requests */
    const struct report report = {
        .mode = "append",
        .seconds = seconds,
        .generator_cpu_seconds = cpu,
        .messages_in_all = warmed_up.messages + counters.messages,
        .errors_in_all = warmed_up.errors + counters.errors,
    };
    report_print(&report, &counted, counters.by_code);
    return 0;
}
