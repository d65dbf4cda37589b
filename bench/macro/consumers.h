/* SPDX-License-Identifier: Apache-2.0 */
/* What consumers ask of a broker: pulls, and the locks of orderly ones. */
#ifndef COMETMQ_BENCH_CONSUMERS_H
#define COMETMQ_BENCH_CONSUMERS_H

#include "options.h"

/* Where one consumer stands in its only queue. */
struct consumer {
    int number; /* also its client id, for locks */
    int queue_id;
    int64_t next_offset;
    bool locks_next; /* orderly: its next request is the lock, which it renews before every pull */
};

/* Choose queue and group of a consumer: neighbours share a group and differ in their queue. */
struct consumer consumer_make(const struct options *options, int number);

/* Write the consumer's next request; return its size. */
size_t consumer_ask(const struct options *options, const struct consumer *consumer,
                    uint32_t opaque, uint8_t *out);

/* Take an answer; the messages that it brought, or -1 if it is a refusal. */
int64_t consumer_take(const struct options *options, struct consumer *consumer,
                      const struct reply *reply);

#endif
