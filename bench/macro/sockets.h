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

/* A blocking connection to an IPv4 or IPv6 address without Nagle's delay, or -1. */
static inline int socket_connect(const char *host, int port) {
    const int on = 1;
    struct sockaddr_in v4 = {.sin_family = AF_INET, .sin_port = htons((uint16_t)port)};
    struct sockaddr_in6 v6 = {.sin6_family = AF_INET6, .sin6_port = htons((uint16_t)port)};
    const int is_v4 = inet_pton(AF_INET, host, &v4.sin_addr) == 1;
    const struct sockaddr *address = is_v4 ? (struct sockaddr *)&v4 : (struct sockaddr *)&v6;
    const int fd = socket(is_v4 ? AF_INET : AF_INET6, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (fd < 0 || (!is_v4 && inet_pton(AF_INET6, host, &v6.sin6_addr) != 1)) {
        fail("socket");
    }
    if (connect(fd, address, is_v4 ? sizeof v4 : sizeof v6) != 0) {
        close(fd);
        return -1;
    }
    setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
    return fd;
}

#endif
