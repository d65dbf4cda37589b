/* SPDX-License-Identifier: Apache-2.0 */
/* Load generator for a RocketMQ-speaking server: a closed loop of C connections with F requests
 * in flight each, on one thread and one epoll. Every answer is matched with its request by opaque
 * and its code is checked; an answer frees its slot and the next request takes it at once.
 * Prints one JSON object. Requests are patched templates: about 0.3 us of processor time each. */
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <string.h>
#include <sys/epoll.h>

#include "counters.h"
#include "first.h"
#include "frames.h"
#include "options.h"
#include "sockets.h"

enum { EVENTS = 64, READ_BYTES = 256 * 1024, QUEUES_MAX = 1024 };

struct slot {
    uint32_t opaque;
    uint64_t sent_ns;
};

struct buffer {
    uint8_t *bytes;
    size_t size;
    size_t capacity;
};

struct connection {
    int fd;
    int queue_id; /* pull: its only queue; send: the queue of the next message */
    int64_t next_offset;
    uint32_t generation;
    struct slot *slots;
    struct buffer input;
    struct buffer output;
    bool waits_to_write;
};

struct engine {
    struct options options;
    struct template templates[QUEUES_MAX];
    struct connection *connections;
    int epoll;
    uint64_t message; /* number of the next message, for UNIQ_KEY */
    uint64_t issued;
    uint64_t open; /* requests not yet answered */
    uint64_t born_ms;
    bool is_stopping;
    struct counters counters;
};

static void buffer_reserve(struct buffer *buffer, size_t room) {
    if (buffer->capacity - buffer->size >= room) {
        return;
    }
    buffer->capacity = (buffer->size + room) * 2;
    buffer->bytes = realloc(buffer->bytes, buffer->capacity);
    if (buffer->bytes == NULL) {
        fail("realloc");
    }
}

static size_t write_send(struct engine *engine, struct connection *connection, uint32_t opaque,
                         uint8_t *out) {
    struct template *template = &engine->templates[connection->queue_id];
    connection->queue_id = (connection->queue_id + 1) % engine->options.queues;
    template_patch(template, opaque, engine->born_ms, engine->message++);
    memcpy(out, template->bytes, template->size);
    return template->size;
}

static size_t write_pull(const struct engine *engine, const struct connection *connection,
                         uint32_t opaque, uint8_t *out) {
    char queue_id[12];
    char offset[24];
    snprintf(queue_id, sizeof queue_id, "%d", connection->queue_id);
    snprintf(offset, sizeof offset, "%" PRId64, connection->next_offset);
    const struct field fields[] = {
        {"consumerGroup", engine->options.group}, {"topic", engine->options.topic},
        {"queueId", queue_id}, {"queueOffset", offset}, {"maxMsgNums", "32"}, {"sysFlag", "4"},
        {"commitOffset", "0"}, {"suspendTimeoutMillis", "20000"}, {"subscription", "*"},
        {"subVersion", "0"}, {"expressionType", "TAG"},
    };
    const struct request request = {engine->options.serialization, CODE_PULL, opaque, fields,
                                    sizeof fields / sizeof fields[0], NULL, 0};
    return frame_build(&request, out);
}

/* Queue the next request of a slot; its time starts now. */
static void issue(struct engine *engine, struct connection *connection, uint32_t slot,
                  uint64_t now_ns) {
    const uint32_t in_flight = (uint32_t)engine->options.in_flight;
    const uint32_t generations = OPAQUE_BASE / in_flight;
    if (engine->is_stopping ||
        (engine->options.count != 0 && engine->issued == engine->options.count)) {
        return;
    }
    const uint32_t opaque =
        OPAQUE_BASE + (connection->generation++ % generations) * in_flight + slot;
    struct buffer *output = &connection->output;
    buffer_reserve(output, 4096 + engine->options.body_bytes);
    uint8_t *out = output->bytes + output->size;
    output->size += engine->options.mode == MODE_SEND
                        ? write_send(engine, connection, opaque, out)
                        : write_pull(engine, connection, opaque, out);
    connection->slots[slot] = (struct slot){opaque, now_ns};
    engine->issued++;
    engine->open++;
}

static void watch(const struct engine *engine, struct connection *connection, bool also_write) {
    struct epoll_event event = {.events = EPOLLIN | (also_write ? EPOLLOUT : 0u),
                                .data.ptr = connection};
    if (epoll_ctl(engine->epoll, EPOLL_CTL_MOD, connection->fd, &event) != 0) {
        fail("epoll_ctl");
    }
    connection->waits_to_write = also_write;
}

static void flush(const struct engine *engine, struct connection *connection) {
    struct buffer *output = &connection->output;
    if (output->size == 0) {
        return;
    }
    const ssize_t sent = send(connection->fd, output->bytes, output->size, MSG_NOSIGNAL);
    if (sent < 0 && errno != EAGAIN) {
        fail("send");
    }
    if (sent > 0) {
        memmove(output->bytes, output->bytes + sent, output->size - (size_t)sent);
        output->size -= (size_t)sent;
    }
    if ((output->size > 0) != connection->waits_to_write) {
        watch(engine, connection, output->size > 0);
    }
}

static uint64_t messages_of_pull(struct engine *engine, struct connection *connection,
                                 const struct reply *reply) {
    if (reply->code == REPLY_PULL_NOT_FOUND || reply->code == REPLY_PULL_MOVED) {
        connection->next_offset = 0;
        return 0;
    }
    const int64_t next_offset = reply_number(reply, "nextBeginOffset");
    const int64_t count = count_records(reply->body, reply->body_bytes);
    if (reply->code != REPLY_SUCCESS || next_offset < 0 || count <= 0) {
        engine->counters.errors++;
        return 0;
    }
    connection->next_offset = next_offset;
    return (uint64_t)count;
}

static void take_reply(struct engine *engine, struct connection *connection,
                       const struct reply *reply, uint64_t now_ns) {
    if (!reply->is_response) {
        return; /* a notice from the server, such as 40 */
    }
    struct counters *counters = &engine->counters;
    const uint32_t slot = (reply->opaque - OPAQUE_BASE) % (uint32_t)engine->options.in_flight;
    if (connection->slots[slot].opaque != reply->opaque) {
        fprintf(stderr, "loadgen: answer to unknown opaque %u\n", reply->opaque);
        exit(1);
    }
    connection->slots[slot].opaque = 0;
    engine->open--;
    counters_add(counters, reply->code, now_ns - connection->slots[slot].sent_ns);
    if (engine->options.mode == MODE_PULL) {
        counters->messages += messages_of_pull(engine, connection, reply);
    } else if (reply->code == REPLY_SUCCESS) {
        counters->messages++;
    } else {
        counters->errors++;
    }
    issue(engine, connection, slot, now_ns);
}

static void take_frames(struct engine *engine, struct connection *connection, uint64_t now_ns) {
    struct buffer *input = &connection->input;
    size_t at = 0;
    for (;;) {
        const size_t size = frame_size(input->bytes + at, input->size - at);
        if (size > FRAME_BYTES_MAX) {
            fputs("loadgen: frame too large\n", stderr);
            exit(1);
        }
        if (size == 0 || size > input->size - at) {
            break;
        }
        struct reply reply;
        if (!reply_parse(input->bytes + at, size, &reply)) {
            fputs("loadgen: malformed answer\n", stderr);
            exit(1);
        }
        take_reply(engine, connection, &reply, now_ns);
        at += size;
    }
    memmove(input->bytes, input->bytes + at, input->size - at);
    input->size -= at;
}

static void serve(struct engine *engine, struct connection *connection, uint32_t events,
                  uint64_t now_ns) {
    if (events & (EPOLLIN | EPOLLHUP | EPOLLERR)) {
        struct buffer *input = &connection->input;
        buffer_reserve(input, READ_BYTES);
        const ssize_t got =
            recv(connection->fd, input->bytes + input->size, input->capacity - input->size, 0);
        if (got == 0 || (got < 0 && errno != EAGAIN)) {
            fail("loadgen: connection lost");
        }
        input->size += got > 0 ? (size_t)got : 0;
        take_frames(engine, connection, now_ns);
    }
    flush(engine, connection);
}

/* Run until the given moment, or until nothing is open any more. */
static void run_until(struct engine *engine, uint64_t end_ns) {
    struct epoll_event events[EVENTS];
    uint64_t last_ns = monotonic_ns();
    for (uint64_t now_ns = last_ns; now_ns < end_ns && engine->open > 0;) {
        const int count = epoll_wait(engine->epoll, events, EVENTS, 100);
        if (count < 0 && errno != EINTR) {
            fail("epoll_wait");
        }
        now_ns = monotonic_ns();
        engine->born_ms = clock_ns(CLOCK_REALTIME) / 1000000;
        if (count > 0) {
            last_ns = now_ns;
        } else if (now_ns - last_ns > (uint64_t)(engine->options.timeout * 1e9)) {
            fprintf(stderr, "loadgen: %" PRIu64 " requests without answer\n", engine->open);
            exit(1);
        }
        for (int i = 0; i < count; i++) {
            serve(engine, events[i].data.ptr, events[i].events, now_ns);
        }
    }
}

static void open_connection(struct engine *engine, int number) {
    struct connection *connection = &engine->connections[number];
    connection->fd = socket_connect(engine->options.host, engine->options.port);
    if (connection->fd < 0) {
        fail("connect");
    }
    fcntl(connection->fd, F_SETFL, O_NONBLOCK);
    connection->queue_id = number % engine->options.queues;
    connection->slots = calloc((size_t)engine->options.in_flight, sizeof(struct slot));
    struct epoll_event event = {.events = EPOLLIN, .data.ptr = connection};
    if (epoll_ctl(engine->epoll, EPOLL_CTL_ADD, connection->fd, &event) != 0) {
        fail("epoll_ctl");
    }
}

static void start(struct engine *engine) {
    const struct options *options = &engine->options;
    const uint64_t producer = clock_ns(CLOCK_REALTIME) ^ (uint64_t)getpid() << 48;
    for (int queue_id = 0; queue_id < options->queues; queue_id++) {
        const struct send_options send = {options->serialization, options->group, options->topic,
                                          queue_id, options->body_bytes, producer};
        engine->templates[queue_id] = send_template(&send);
    }
    engine->epoll = epoll_create1(EPOLL_CLOEXEC);
    engine->connections = calloc((size_t)options->connections, sizeof(struct connection));
    engine->born_ms = clock_ns(CLOCK_REALTIME) / 1000000;
    for (int i = 0; i < options->connections; i++) {
        open_connection(engine, i);
    }
    for (int i = 0; i < options->connections; i++) {
        for (int slot = 0; slot < options->in_flight; slot++) {
            issue(engine, &engine->connections[i], (uint32_t)slot, monotonic_ns());
        }
        flush(engine, &engine->connections[i]);
    }
}

static int run_load(const struct options *options) {
    static struct engine engine;
    engine.options = *options;
    if (options->mode == MODE_PULL) {
        engine.options.in_flight = 1; /* as a consumer: the answer says where to go on */
    }
    if (options->queues > QUEUES_MAX) {
        fputs("loadgen: too many queues\n", stderr);
        return 2;
    }
    start(&engine);
    run_until(&engine, monotonic_ns() + (uint64_t)(options->warmup * 1e9));
    const struct counters warmed_up = engine.counters;
    counters_clear(&engine.counters);
    const double cpu_before = cpu_seconds();
    const uint64_t start_ns = monotonic_ns();
    run_until(&engine, options->count != 0 ? UINT64_MAX
                                           : start_ns + (uint64_t)(options->seconds * 1e9));
    const struct counters counted = engine.counters;
    const double seconds = (double)(monotonic_ns() - start_ns) / 1e9;
    const double cpu = cpu_seconds() - cpu_before;
    engine.is_stopping = true;
    run_until(&engine, UINT64_MAX); /* what is still open must be answered, too */
    const struct report report = {
        .mode = options->mode_name,
        .seconds = seconds,
        .generator_cpu_seconds = cpu,
        .messages_in_all = warmed_up.messages + engine.counters.messages,
        .errors_in_all = warmed_up.errors + engine.counters.errors,
    };
    report_print(&report, &counted, engine.counters.by_code);
    return 0;
}

int main(int argc, char **argv) {
    const struct options options = options_parse(argc, argv);
    if (options.mode == MODE_FIRST_SEND || options.mode == MODE_FIRST_PULL) {
        return run_first(&options);
    }
    return run_load(&options);
}
