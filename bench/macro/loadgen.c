/* SPDX-License-Identifier: Apache-2.0 */
/* Load generator for a RocketMQ-speaking server: a closed loop of C connections with F requests
 * in flight each, on one thread and one epoll. Every answer is matched with its request by opaque
 * and its code is checked; an answer frees its slot for the next request, which is sent at once.
 * With --rate, requests are sent when they are due instead, and their times count from then on, so
 * a server that stalls is charged with all requests that it holds up.
 * Prints one JSON object; before it, with --rate, the line "sending". Requests are patched templates: about 0.3 us of processor time each. */
#include <errno.h>
#include <inttypes.h>
#include <signal.h>
#include <string.h>
#include <sys/timerfd.h>

#include "consumers.h"
#include "counters.h"
#include "first.h"
#include "frames.h"
#include "options.h"
#include "streams.h"
#include "tls.h"

/* A free slot of a connection, which waits for the next request that is due. */
struct idle {
    struct connection *connection;
    uint32_t slot;
};

/* Open loop: requests at equal intervals. If no slot is free, they wait, and are late. */
struct pace {
    int timer;
    uint64_t interval_ns; /* 0: a closed loop */
    uint64_t due_ns;      /* when the next request is due */
    struct idle *ring;    /* first in, first out, so that all connections are used */
    size_t first, count, capacity;
};

static volatile sig_atomic_t is_interrupted;

enum { EVENTS = 64, PLACES_MAX = 1 << 16, TOPIC_BYTES = 128, TICK_NS_MIN = 50000 };

struct slot {
    uint32_t opaque;
    uint64_t sent_ns;
};

struct connection {
    struct stream stream;
    int place; /* send: topic and queue of the next message */
    struct consumer consumer;
    uint32_t generation;
    struct slot *slots;
};

struct engine {
    struct options options;
    int places; /* send: queues of all topics */
    struct template *templates; /* one per place */
    struct connection *connections;
    int epoll;
    uint64_t message; /* number of the next message, for UNIQ_KEY */
    uint64_t issued;
    uint64_t open; /* requests not yet answered */
    uint64_t born_ms;
    bool is_stopping;
    struct pace pace;
    struct counters counters;
};

static size_t write_send(struct engine *engine, struct connection *connection, uint32_t opaque,
                         uint8_t *out) {
    struct template *template = &engine->templates[connection->place];
    connection->place = (connection->place + 1) % engine->places;
    template_patch(template, opaque, engine->born_ms, engine->message++);
    memcpy(out, template->bytes, template->size);
    return template->size;
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
    struct buffer *output = &connection->stream.output;
    buffer_reserve(output, 4096 + engine->options.body_bytes);
    uint8_t *out = output->bytes + output->size;
    output->size += engine->options.mode == MODE_SEND
                        ? write_send(engine, connection, opaque, out)
                        : consumer_ask(&engine->options, &connection->consumer, opaque, out);
    connection->slots[slot] = (struct slot){opaque, now_ns};
    engine->issued++;
    engine->open++;
}

/* A slot is free: send its next request now, or when the next one is due. */
static void free_slot(struct engine *engine, struct connection *connection, uint32_t slot,
                      uint64_t now_ns) {
    struct pace *pace = &engine->pace;
    if (pace->interval_ns == 0) {
        issue(engine, connection, slot, now_ns);
        return;
    }
    pace->ring[(pace->first + pace->count++) % pace->capacity] = (struct idle){connection, slot};
}

/* Send the requests that are due, as far as slots are free. */
static void issue_due(struct engine *engine, uint64_t now_ns) {
    struct pace *pace = &engine->pace;
    while (pace->count > 0 && pace->due_ns <= now_ns && !engine->is_stopping) {
        const struct idle idle = pace->ring[pace->first];
        pace->first = (pace->first + 1) % pace->capacity;
        pace->count--;
        issue(engine, idle.connection, idle.slot, pace->due_ns);
        stream_flush(&idle.connection->stream);
        pace->due_ns += pace->interval_ns;
    }
}

static void take_reply(struct engine *engine, struct connection *connection,
                       const struct reply *reply, uint64_t now_ns) {
    if (!reply->is_response) {
        return; /* a notification from the server, such as code 40 */
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
    int64_t messages = reply->code == REPLY_SUCCESS ? 1 : -1;
    if (engine->options.mode != MODE_SEND) {
        messages = consumer_take(&engine->options, &connection->consumer, reply);
    }
    if (messages < 0) {
        counters->errors++;
    } else {
        counters->messages += (uint64_t)messages;
    }
    free_slot(engine, connection, slot, now_ns);
}

static void take_frames(struct engine *engine, struct connection *connection, uint64_t now_ns) {
    struct buffer *input = &connection->stream.input;
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
    buffer_drop(input, at);
}

static void serve(struct engine *engine, struct connection *connection, uint32_t events,
                  uint64_t now_ns) {
    if (stream_receive(&connection->stream, events)) {
        take_frames(engine, connection, now_ns);
    }
    stream_flush(&connection->stream);
}

static bool has_work(const struct engine *engine) {
    return engine->open > 0 || (engine->pace.interval_ns > 0 && !engine->is_stopping);
}

static void expire_timer(struct engine *engine, uint64_t now_ns) {
    uint64_t expirations;
    if (read(engine->pace.timer, &expirations, sizeof expirations) > 0) {
        issue_due(engine, now_ns);
    }
}

/* Run until the given time, until no request is open, or until SIGINT, which the final wait for
 * open requests ignores. */
static void run_until(struct engine *engine, uint64_t end_ns) {
    struct epoll_event events[EVENTS];
    uint64_t last_ns = monotonic_ns(); /* of the last answer, or the last time nothing was open */
    for (uint64_t now_ns = last_ns; now_ns < end_ns && has_work(engine);) {
        if (is_interrupted && !engine->is_stopping) {
            return;
        }
        const int count = epoll_wait(engine->epoll, events, EVENTS, 100);
        if (count < 0 && errno != EINTR) {
            fail("epoll_wait");
        }
        now_ns = monotonic_ns();
        engine->born_ms = clock_ns(CLOCK_REALTIME) / 1000000;
        const bool is_timer_only = count == 1 && events[0].data.ptr == NULL;
        if ((count > 0 && !is_timer_only) || engine->open == 0) {
            last_ns = now_ns;
        } else if (now_ns - last_ns > (uint64_t)(engine->options.timeout * 1e9)) {
            fprintf(stderr, "loadgen: %" PRIu64 " requests without answer\n", engine->open);
            exit(1);
        }
        for (int i = 0; i < count; i++) {
            if (events[i].data.ptr == NULL) {
                expire_timer(engine, now_ns);
            } else {
                serve(engine, events[i].data.ptr, events[i].events, now_ns);
            }
        }
        if (engine->pace.interval_ns > 0) {
            issue_due(engine, now_ns); /* on slots that were all in use when they were due */
        }
    }
}

static void start_pace(struct engine *engine) {
    struct pace *pace = &engine->pace;
    const struct options *options = &engine->options;
    pace->interval_ns = 1000000000 / (uint64_t)options->rate;
    pace->capacity = (size_t)options->connections * (size_t)options->in_flight;
    pace->ring = calloc(pace->capacity, sizeof(struct idle));
    pace->due_ns = monotonic_ns() + pace->interval_ns;
    pace->timer = timerfd_create(CLOCK_MONOTONIC, TFD_NONBLOCK | TFD_CLOEXEC);
    const uint64_t tick_ns = pace->interval_ns < TICK_NS_MIN ? TICK_NS_MIN : pace->interval_ns;
    const struct timespec tick = {(time_t)(tick_ns / 1000000000), (long)(tick_ns % 1000000000)};
    const struct itimerspec every = {.it_interval = tick, .it_value = tick};
    struct epoll_event event = {.events = EPOLLIN, .data.ptr = NULL};
    if (pace->timer < 0 || timerfd_settime(pace->timer, 0, &every, NULL) != 0 ||
        epoll_ctl(engine->epoll, EPOLL_CTL_ADD, pace->timer, &event) != 0) {
        fail("timerfd");
    }
}

static void open_connection(struct engine *engine, int number) {
    struct connection *connection = &engine->connections[number];
    stream_connect(&connection->stream, engine->options.host, engine->options.port);
    if (engine->options.uses_tls) {
        tls_open(&connection->stream);
    }
    stream_watch(&connection->stream, engine->epoll, connection);
    connection->place = number % engine->places;
    connection->consumer = consumer_make(&engine->options, number);
    connection->slots = calloc((size_t)engine->options.in_flight, sizeof(struct slot));
}

/* One template per queue of each topic; neighbouring places have different topics. */
static void make_templates(struct engine *engine) {
    const struct options *options = &engine->options;
    const uint64_t producer = clock_ns(CLOCK_REALTIME) ^ (uint64_t)getpid() << 48;
    char topic[TOPIC_BYTES];
    engine->places = options->queues * options->topics;
    engine->templates = calloc((size_t)engine->places, sizeof(struct template));
    for (int place = 0; place < engine->places; place++) {
        snprintf(topic, sizeof topic, options->topics == 1 ? "%s" : "%s_%04d", options->topic,
                 place % options->topics);
        const struct send_options send = {
            options->serialization, options->group, topic, place / options->topics,
            options->body_bytes, producer, options->properties};
        engine->templates[place] = send_template(&send);
    }
}

static void start(struct engine *engine) {
    const struct options *options = &engine->options;
    make_templates(engine);
    engine->epoll = epoll_create1(EPOLL_CLOEXEC);
    engine->connections = calloc((size_t)options->connections, sizeof(struct connection));
    engine->born_ms = clock_ns(CLOCK_REALTIME) / 1000000;
    for (int i = 0; i < options->connections; i++) {
        open_connection(engine, i);
    }
    if (options->rate > 0) {
        start_pace(engine);
    }
    for (int i = 0; i < options->connections; i++) {
        for (int slot = 0; slot < options->in_flight; slot++) {
            free_slot(engine, &engine->connections[i], (uint32_t)slot, monotonic_ns());
        }
        stream_flush(&engine->connections[i].stream);
    }
}

static void interrupt(int signal_number) {
    (void)signal_number;
    is_interrupted = 1;
}

static int run_load(const struct options *options) {
    static struct engine engine;
    engine.options = *options;
    if (options->mode != MODE_SEND) {
        engine.options.in_flight = 1; /* like a consumer: the answer has the next offset */
    }
    if ((int64_t)options->queues * options->topics > PLACES_MAX) {
        fputs("loadgen: too many queues\n", stderr);
        return 2;
    }
    signal(SIGINT, interrupt);
    start(&engine);
    if (options->rate > 0) { /* from now on, the caller may send SIGINT */
        puts("sending");
        fflush(stdout);
    }
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
    run_until(&engine, UINT64_MAX); /* wait for the answers to open requests */
    const struct report report = {
        .mode = options->mode_name,
        .seconds = seconds,
        .generator_cpu_seconds = cpu,
        .messages_in_all = warmed_up.messages + engine.counters.messages,
        .errors_in_all = warmed_up.errors + engine.counters.errors,
    };
    uint64_t *by_code = engine.counters.by_code;
    for (int code = 0; code < CODES; code++) { /* refusals during the warm-up count, too */
        by_code[code] += code == REPLY_SUCCESS ? 0 : warmed_up.by_code[code];
    }
    report_print(&report, &counted, by_code);
    return 0;
}

int main(int argc, char **argv) {
    const struct options options = options_parse(argc, argv);
    signing_set(options.access_key, options.secret_key);
    if (options.mode == MODE_FIRST_SEND || options.mode == MODE_FIRST_PULL) {
        return run_first(&options);
    }
    return run_load(&options);
}
