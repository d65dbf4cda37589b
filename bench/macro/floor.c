/* SPDX-License-Identifier: Apache-2.0 */
/* The floor of the protocol: a server that reads whole frames and answers each with a constant
 * success, which shows the load generator's own ceiling. One thread, one epoll; all answers of one
 * turn leave in one write. */
#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/epoll.h>

#include "frames.h"
#include "sockets.h"

enum { EVENTS = 64, INPUT_BYTES = 4 * 1024 * 1024, CONNECTIONS_MAX = 1024 };

struct peer {
    uint8_t *input;
    size_t size;
    uint8_t *output;
};

static struct peer peers[CONNECTIONS_MAX];

static const struct field ANSWER[] = {
    {"msgId", "7F0000010000810B000000000045A721"}, {"queueId", "0"}, {"queueOffset", "1000000"},
    {"TRACE_ON", "true"}, {"MSG_REGION", "DefaultRegion"},
};

/* One constant answer per serialization; only opaque is patched. */
static uint8_t answers[2][1024];
static size_t answer_bytes[2];
static size_t answer_opaque_at[2];

static void prepare(void) {
    static const char JSON_FLAG[] = "\"flag\":0";
    static const char JSON_OPAQUE[] = "\"opaque\":";
    for (int kind = 0; kind < 2; kind++) {
        const struct request request = {(enum serialization)kind, REPLY_SUCCESS, OPAQUE_BASE,
                                        ANSWER, sizeof ANSWER / sizeof ANSWER[0], NULL, 0};
        answer_bytes[kind] = frame_build(&request, answers[kind]);
    }
    uint8_t *json = answers[SERIALIZATION_JSON];
    uint8_t *flag = memmem(json, answer_bytes[SERIALIZATION_JSON], JSON_FLAG, strlen(JSON_FLAG));
    uint8_t *opaque = memmem(json, answer_bytes[SERIALIZATION_JSON], JSON_OPAQUE,
                             strlen(JSON_OPAQUE));
    flag[strlen(JSON_FLAG) - 1] = '1';
    answer_opaque_at[SERIALIZATION_JSON] = (size_t)(opaque - json) + strlen(JSON_OPAQUE);
    answers[SERIALIZATION_ROCKETMQ][20] = 1;
    answer_opaque_at[SERIALIZATION_ROCKETMQ] = 13;
}

static size_t answer(const uint8_t *frame, size_t size, uint8_t *out) {
    struct reply request;
    if (!reply_parse(frame, size, &request) || request.serialization > SERIALIZATION_ROCKETMQ) {
        fputs("floor: malformed request\n", stderr);
        exit(1);
    }
    const enum serialization kind = request.serialization;
    memcpy(out, answers[kind], answer_bytes[kind]);
    uint8_t *opaque = out + answer_opaque_at[kind];
    if (kind == SERIALIZATION_ROCKETMQ) {
        memcpy(opaque, frame + 13, 4);
    } else {
        for (uint32_t i = 10, value = request.opaque; i-- > 0; value /= 10) {
            opaque[i] = (uint8_t)('0' + value % 10);
        }
    }
    return answer_bytes[kind];
}

static void serve(int fd) {
    struct peer *peer = &peers[fd];
    const ssize_t got = recv(fd, peer->input + peer->size, INPUT_BYTES - peer->size, 0);
    if (got <= 0) {
        close(fd);
        free(peer->input);
        free(peer->output);
        return;
    }
    peer->size += (size_t)got;
    size_t at = 0;
    size_t out = 0;
    for (size_t size; (size = frame_size(peer->input + at, peer->size - at)) != 0; at += size) {
        if (size > peer->size - at) {
            break;
        }
        out += answer(peer->input + at, size, peer->output + out);
    }
    memmove(peer->input, peer->input + at, peer->size - at);
    peer->size -= at;
    for (size_t sent = 0; sent < out;) {
        const ssize_t count = send(fd, peer->output + sent, out - sent, MSG_NOSIGNAL);
        if (count < 0) {
            return; /* the peer is gone; the next read returns the end of input */
        }
        sent += (size_t)count;
    }
}

static int listen_somewhere(void) {
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t size = sizeof address;
    const int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (fd < 0 || bind(fd, (struct sockaddr *)&address, size) != 0 || listen(fd, 128) != 0 ||
        getsockname(fd, (struct sockaddr *)&address, &size) != 0) {
        fail("listen");
    }
    printf("%d\n", ntohs(address.sin_port));
    fflush(stdout);
    return fd;
}

static void admit(int epoll, int listener) {
    const int on = 1;
    const int fd = accept(listener, NULL, NULL);
    if (fd < 0 || fd >= CONNECTIONS_MAX) {
        fail("accept");
    }
    setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
    peers[fd] = (struct peer){malloc(INPUT_BYTES), 0, malloc(INPUT_BYTES * 2)};
    struct epoll_event event = {.events = EPOLLIN, .data.fd = fd};
    epoll_ctl(epoll, EPOLL_CTL_ADD, fd, &event);
}

int main(void) {
    struct epoll_event events[EVENTS];
    prepare();
    const int epoll = epoll_create1(EPOLL_CLOEXEC);
    const int listener = listen_somewhere();
    struct epoll_event event = {.events = EPOLLIN, .data.fd = listener};
    epoll_ctl(epoll, EPOLL_CTL_ADD, listener, &event);
    for (;;) {
        const int count = epoll_wait(epoll, events, EVENTS, -1);
        if (count < 0 && errno != EINTR) {
            fail("epoll_wait");
        }
        for (int i = 0; i < count; i++) {
            if (events[i].data.fd == listener) {
                admit(epoll, listener);
            } else {
                serve(events[i].data.fd);
            }
        }
    }
}
