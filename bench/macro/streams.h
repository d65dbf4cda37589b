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

struct stream {
    int fd;
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

/* Connect, and wait for input on this epoll; the program ends if the server does not answer. */
static inline void stream_open(struct stream *stream, const char *host, int port, int epoll,
                               void *owner) {
    stream->fd = socket_connect(host, port);
    if (stream->fd < 0) {
        fail("connect");
    }
    fcntl(stream->fd, F_SETFL, O_NONBLOCK);
    stream->epoll = epoll;
    stream->owner = owner;
    struct epoll_event event = {.events = EPOLLIN, .data.ptr = owner};
    if (epoll_ctl(epoll, EPOLL_CTL_ADD, stream->fd, &event) != 0) {
        fail("epoll_ctl");
    }
}

/* Send the output; what the socket does not accept waits for its next event. */
static inline void stream_flush(struct stream *stream) {
    struct buffer *output = &stream->output;
    if (output->size == 0) {
        return;
    }
    const ssize_t sent = send(stream->fd, output->bytes, output->size, MSG_NOSIGNAL);
    if (sent < 0 && errno != EAGAIN) {
        fail("send");
    }
    if (sent > 0) {
        buffer_drop(output, (size_t)sent);
    }
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
    buffer_reserve(input, STREAM_READ_BYTES);
    const ssize_t got =
        recv(stream->fd, input->bytes + input->size, input->capacity - input->size, 0);
    if (got == 0 || (got < 0 && errno != EAGAIN)) {
        fail("connection lost");
    }
    input->size += got > 0 ? (size_t)got : 0;
    return true;
}

#endif
