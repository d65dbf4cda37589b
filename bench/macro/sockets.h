/* SPDX-License-Identifier: Apache-2.0 */
/* The few socket and clock calls that the bench programs share. */
#ifndef COMETMQ_BENCH_SOCKETS_H
#define COMETMQ_BENCH_SOCKETS_H

#include <arpa/inet.h>
#include <netinet/tcp.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

static inline uint64_t clock_ns(clockid_t clock) {
    struct timespec now;
    clock_gettime(clock, &now);
    return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}

static inline uint64_t monotonic_ns(void) { return clock_ns(CLOCK_MONOTONIC); }

static inline _Noreturn void fail(const char *what) {
    perror(what);
    exit(1);
}

/* A blocking connection without Nagle's delay, or -1. */
static inline int socket_connect(const char *host, int port) {
    const int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    const int on = 1;
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_port = htons((uint16_t)port)};
    if (fd < 0 || inet_pton(AF_INET, host, &address.sin_addr) != 1) {
        fail("socket");
    }
    if (connect(fd, (struct sockaddr *)&address, sizeof address) != 0) {
        close(fd);
        return -1;
    }
    setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
    return fd;
}

#endif
