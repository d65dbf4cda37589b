/* SPDX-License-Identifier: Apache-2.0 */
/* Non-blocking connections on one epoll: buffers, and the calls that fill and empty them. */
#ifndef COMETMQ_BENCH_STREAMS_H
#define COMETMQ_BENCH_STREAMS_H

#include <errno.h>
#include <fcntl.h>
#include <stdbool.h>
#include <string.h>
#include <sys/epoll.h>

#include "sockets.h"

enum { STREAM_READ_BYTES = 256 * 1024 };

struct buffer {
    uint8_t *bytes;
    size_t size;
    size_t capacity;
};

/* Sends and receives in place of a socket; like send and recv with EAGAIN. */
struct layer {
    ssize_t (*send)(void *state, const uint8_t *bytes, size_t size);
    ssize_t (*receive)(void *state, uint8_t *bytes, size_t size);
};

struct stream {
    int fd;
    const struct layer *layer; /* NULL: the socket itself */
    void *state;
    int epoll;
    void *owner; /* what epoll returns for an event of this connection */
    struct buffer input;
    struct buffer output;
    bool waits_to_write;
};

static inline void buffer_reserve(struct buffer *buffer, size_t room) {
    if (buffer->capacity - buffer->size >= room) {
        return;
    }
    buffer->capacity = (buffer->size + room) * 2;
    buffer->bytes = realloc(buffer->bytes, buffer->capacity);
    if (buffer->bytes == NULL) {
        fail("realloc");
    }
}

/* Drop the first bytes, which were processed or sent. */
static inline void buffer_drop(struct buffer *buffer, size_t size) {
    memmove(buffer->bytes, buffer->bytes + size, buffer->size - size);
    buffer->size -= size;
}

/* Connect; the program ends if the server does not answer. */
static inline void stream_connect(struct stream *stream, const char *host, int port) {
    stream->fd = socket_connect(host, port);
    if (stream->fd < 0) {
        fail("connect");
    }
}

/* Wait for the input of a connection on this epoll. */
static inline void stream_watch(struct stream *stream, int epoll, void *owner) {
    fcntl(stream->fd, F_SETFL, O_NONBLOCK);
    stream->epoll = epoll;
    stream->owner = owner;
    struct epoll_event event = {.events = EPOLLIN, .data.ptr = owner};
    if (epoll_ctl(epoll, EPOLL_CTL_ADD, stream->fd, &event) != 0) {
        fail("epoll_ctl");
    }
}

static inline void stream_open(struct stream *stream, const char *host, int port, int epoll,
                               void *owner) {
    stream_connect(stream, host, port);
    stream_watch(stream, epoll, owner);
}

/* Send as much of the output as is accepted. */
static inline void stream_send(struct stream *stream) {
    struct buffer *output = &stream->output;
    ssize_t sent;
    do { /* a layer sends one record at a time */
        sent = stream->layer == NULL
                   ? send(stream->fd, output->bytes, output->size, MSG_NOSIGNAL)
                   : stream->layer->send(stream->state, output->bytes, output->size);
        if (sent < 0 && errno != EAGAIN) {
            fail("send");
        }
        buffer_drop(output, sent > 0 ? (size_t)sent : 0);
    } while (stream->layer != NULL && sent > 0 && output->size > 0);
}

/* Send the output; what the socket does not accept waits for its next event. */
static inline void stream_flush(struct stream *stream) {
    struct buffer *output = &stream->output;
    if (output->size == 0) {
        return;
    }
    stream_send(stream);
    const bool must_wait = output->size > 0;
    if (must_wait == stream->waits_to_write) {
        return;
    }
    struct epoll_event event = {.events = EPOLLIN | (must_wait ? EPOLLOUT : 0u),
                                .data.ptr = stream->owner};
    if (epoll_ctl(stream->epoll, EPOLL_CTL_MOD, stream->fd, &event) != 0) {
        fail("epoll_ctl");
    }
    stream->waits_to_write = must_wait;
}

/* Append received bytes to the input; return whether there can be any. */
static inline bool stream_receive(struct stream *stream, uint32_t events) {
    if (!(events & (EPOLLIN | EPOLLHUP | EPOLLERR))) {
        return false;
    }
    struct buffer *input = &stream->input;
    ssize_t got;
    do { /* a layer keeps what it has read: epoll does not report it again */
        buffer_reserve(input, STREAM_READ_BYTES);
        uint8_t *end = input->bytes + input->size;
        const size_t room = input->capacity - input->size;
        got = stream->layer == NULL ? recv(stream->fd, end, room, 0)
                                    : stream->layer->receive(stream->state, end, room);
        if (got == 0 || (got < 0 && errno != EAGAIN)) {
            fail("connection lost");
        }
        input->size += got > 0 ? (size_t)got : 0;
    } while (stream->layer != NULL && got > 0);
    return true;
}

#endif
