/* SPDX-License-Identifier: Apache-2.0 */
/* Requests of consumers: pulls, and locks of orderly consumers. */
#ifndef COMETMQ_BENCH_CONSUMERS_H
#define COMETMQ_BENCH_CONSUMERS_H

#include "options.h"

/* The position of one consumer in its only queue. */
struct consumer {
    int number; /* also its client id, for locks */
    int queue_id;
    int64_t next_offset;
    bool locks_next; /* orderly: the next request is the lock, which is renewed before every pull */
};

/* Choose a consumer's queue and group: neighbours share a group and have different queues. */
struct consumer consumer_make(const struct options *options, int number);

/* Write the consumer's next request; return its size. */
size_t consumer_ask(const struct options *options, const struct consumer *consumer,
                    uint32_t opaque, uint8_t *out);

/* Process an answer; return its number of messages, or -1 if it is a refusal. */
int64_t consumer_take(const struct options *options, struct consumer *consumer,
                      const struct reply *reply);

#endif
