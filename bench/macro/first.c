/* SPDX-License-Identifier: Apache-2.0 */
/* Start-up and recovery time: connect and send a request every two milliseconds until the server,
 * which may not listen yet, gives the expected answer. The printed time is CLOCK_MONOTONIC, so the
 * caller can subtract the time at which it started the server. */
#include "first.h"

#include <stdbool.h>
#include <string.h>
#include <sys/time.h>

#include "sockets.h"

enum { RETRY_NS = 2000000 };

static bool read_all(int fd, uint8_t *out, size_t size) {
    for (size_t got = 0; got < size;) {
        const ssize_t count = recv(fd, out + got, size - got, 0);
        if (count <= 0) {
            return false;
        }
        got += (size_t)count;
    }
    return true;
}

static bool exchange(int fd, const uint8_t *frame, size_t size, uint8_t *answer) {
    struct reply reply;
    if (send(fd, frame, size, MSG_NOSIGNAL) != (ssize_t)size || !read_all(fd, answer, 4)) {
        return false;
    }
    const size_t total = frame_size(answer, 4);
    return total <= FRAME_BYTES_MAX && read_all(fd, answer + 4, total - 4) &&
           reply_parse(answer, total, &reply) && reply.is_response && reply.code == REPLY_SUCCESS;
}

static bool ask_once(const char *host, int port, const uint8_t *frame, size_t size,
                     uint8_t *answer) {
    const struct timeval limit = {.tv_sec = 1};
    const int fd = socket_connect(host, port);
    if (fd < 0) {
        return false;
    }
    setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof limit);
    const bool is_accepted = exchange(fd, frame, size, answer);
    close(fd);
    return is_accepted;
}

static bool ask_until(const struct options *options, int port, const uint8_t *frame, size_t size) {
    const uint64_t deadline = monotonic_ns() + (uint64_t)(options->timeout * 1e9);
    const struct timespec pause = {.tv_nsec = RETRY_NS};
    uint8_t *answer = malloc(FRAME_BYTES_MAX);
    bool is_accepted = false;
    while (!is_accepted && monotonic_ns() < deadline) {
        is_accepted = ask_once(options->host, port, frame, size, answer);
        if (!is_accepted) {
            nanosleep(&pause, NULL);
        }
    }
    free(answer);
    return is_accepted;
}

static bool wait_for_route(const struct options *options) {
    const struct field field = {"topic", "TBW102"};
    const struct request request = {options->serialization, CODE_ROUTE, OPAQUE_BASE, &field, 1,
                                    NULL, 0};
    uint8_t frame[1024];
    return ask_until(options, options->namesrv_port, frame, frame_build(&request, frame));
}

static bool first_send(const struct options *options) {
    const struct send_options send = {options->serialization, options->group, options->topic, 0,
                                      options->body_bytes, clock_ns(CLOCK_REALTIME), ""};
    struct template template = send_template(&send);
    template_patch(&template, OPAQUE_BASE, clock_ns(CLOCK_REALTIME) / 1000000, 0);
    const bool is_accepted = ask_until(options, options->port, template.bytes, template.size);
    free(template.bytes);
    return is_accepted;
}

static bool first_pull(const struct options *options) {
    const struct field fields[] = {
        {"consumerGroup", options->group}, {"topic", options->topic}, {"queueId", "0"},
        {"queueOffset", "0"}, {"maxMsgNums", "1"}, {"sysFlag", "4"}, {"commitOffset", "0"},
        {"suspendTimeoutMillis", "0"}, {"subscription", "*"}, {"subVersion", "0"},
        {"expressionType", "TAG"},
    };
    const struct request request = {options->serialization, CODE_PULL, OPAQUE_BASE, fields,
                                    sizeof fields / sizeof fields[0], NULL, 0};
    uint8_t frame[2048];
    return ask_until(options, options->port, frame, frame_build(&request, frame));
}

int run_first(const struct options *options) {
    if (options->namesrv_port != 0 && !wait_for_route(options)) {
        fputs("loadgen: no route in time\n", stderr);
        return 1;
    }
    if (!(options->mode == MODE_FIRST_SEND ? first_send(options) : first_pull(options))) {
        fputs("loadgen: nothing was accepted in time\n", stderr);
        return 1;
    }
    printf("{\"mode\": \"%s\", \"accepted_ns\": %llu}\n", options->mode_name,
           (unsigned long long)monotonic_ns());
    return 0;
}
