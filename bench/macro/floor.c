/* SPDX-License-Identifier: Apache-2.0 */
/* The floor of the protocol: a server that reads whole frames and answers each with a constant
 * success: a pull with 32 records, any other request as a send. It shows the load generator's own
 * ceiling, and what one thread that does no work can reach. One epoll; all answers of one turn
 * leave in one write. */
#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/epoll.h>

#include "frames.h"
#include "sockets.h"

enum { EVENTS = 64, CONNECTIONS_MAX = 1024 };
enum { INPUT_BYTES = 4 * 1024 * 1024, OUTPUT_BYTES = 8 * 1024 * 1024 };
enum { RECORDS = 32, RECORD_BYTES = 226 }; /* a record with a body of 128 bytes */
enum { SENT, PULLED, ANSWERS };

struct peer {
    uint8_t *input;
    size_t size;
    uint8_t *output;
};

static struct peer peers[CONNECTIONS_MAX];

static const struct field SENT_FIELDS[] = {
    {"msgId", "7F0000010000810B000000000045A721"}, {"queueId", "0"}, {"queueOffset", "1000000"},
    {"TRACE_ON", "true"}, {"MSG_REGION", "DefaultRegion"},
};
static const struct field PULLED_FIELDS[] = {
    {"suggestWhichBrokerId", "0"}, {"nextBeginOffset", "32"}, {"minOffset", "0"},
    {"maxOffset", "50000"},
};

/* A constant answer; only opaque is patched. */
struct constant {
    uint8_t bytes[16 * 1024];
    size_t size;
    size_t opaque_at;
};

static struct constant constants[ANSWERS][2];

static void prepare_one(struct constant *constant, const struct request *request) {
    static const char JSON_FLAG[] = "\"flag\":0";
    static const char JSON_OPAQUE[] = "\"opaque\":";
    constant->size = frame_build(request, constant->bytes);
    if (request->serialization == SERIALIZATION_ROCKETMQ) {
        constant->bytes[20] = 1;
        constant->opaque_at = 13;
        return;
    }
    uint8_t *flag = memmem(constant->bytes, constant->size, JSON_FLAG, strlen(JSON_FLAG));
    uint8_t *opaque = memmem(constant->bytes, constant->size, JSON_OPAQUE, strlen(JSON_OPAQUE));
    flag[strlen(JSON_FLAG) - 1] = '1';
    constant->opaque_at = (size_t)(opaque - constant->bytes) + strlen(JSON_OPAQUE);
}

static void prepare(void) {
    static uint8_t records[RECORDS * RECORD_BYTES];
    memset(records, 'x', sizeof records);
    for (size_t at = 0; at < sizeof records; at += RECORD_BYTES) {
        memcpy(records + at, (const uint8_t[]){0, 0, 0, RECORD_BYTES}, 4);
    }
    for (int kind = 0; kind < 2; kind++) {
        const struct request sent = {(enum serialization)kind, REPLY_SUCCESS, OPAQUE_BASE,
                                     SENT_FIELDS, sizeof SENT_FIELDS / sizeof SENT_FIELDS[0],
                                     NULL, 0};
        const struct request pulled = {(enum serialization)kind, REPLY_SUCCESS, OPAQUE_BASE,
                                       PULLED_FIELDS,
                                       sizeof PULLED_FIELDS / sizeof PULLED_FIELDS[0], records,
                                       sizeof records};
        prepare_one(&constants[SENT][kind], &sent);
        prepare_one(&constants[PULLED][kind], &pulled);
    }
}

static size_t answer(const uint8_t *frame, size_t size, uint8_t *out) {
    struct reply request;
    if (!reply_parse(frame, size, &request) || request.serialization > SERIALIZATION_ROCKETMQ) {
        fputs("floor: malformed request\n", stderr);
        exit(1);
    }
    const struct constant *constant =
        &constants[request.code == CODE_PULL ? PULLED : SENT][request.serialization];
    memcpy(out, constant->bytes, constant->size);
    uint8_t *opaque = out + constant->opaque_at;
    if (request.serialization == SERIALIZATION_ROCKETMQ) {
        memcpy(opaque, frame + 13, 4);
    } else {
        for (uint32_t i = 10, value = request.opaque; i-- > 0; value /= 10) {
            opaque[i] = (uint8_t)('0' + value % 10);
        }
    }
    return constant->size;
}

/* A failure is ignored: the peer is gone, and the next read returns the end of input. */
static void write_all(int fd, const uint8_t *data, size_t size) {
    for (size_t sent = 0; sent < size;) {
        const ssize_t count = send(fd, data + sent, size - sent, MSG_NOSIGNAL);
        if (count < 0) {
            return;
        }
        sent += (size_t)count;
    }
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
        if (out > OUTPUT_BYTES - sizeof(struct constant)) {
            write_all(fd, peer->output, out);
            out = 0;
        }
        out += answer(peer->input + at, size, peer->output + out);
    }
    memmove(peer->input, peer->input + at, peer->size - at);
    peer->size -= at;
    write_all(fd, peer->output, out);
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
    peers[fd] = (struct peer){malloc(INPUT_BYTES), 0, malloc(OUTPUT_BYTES)};
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
