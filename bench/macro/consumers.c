/* SPDX-License-Identifier: Apache-2.0 */
/* A consumer restarts its queue at the end, so it always has messages. */
#include "consumers.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

enum { NAME_BYTES = 128, COMMIT_OFFSET = 1, SUBSCRIPTION = 4 };

struct consumer consumer_make(const struct options *options, int number) {
    return (struct consumer){.number = number,
                             .queue_id = number % options->queues,
                             .locks_next = options->mode == MODE_ORDERLY};
}

static void group_name(const struct options *options, const struct consumer *consumer, char *out) {
    if (options->groups == 1) {
        snprintf(out, NAME_BYTES, "%s", options->group);
    } else {
        snprintf(out, NAME_BYTES, "%s_%d", options->group,
                 consumer->number / options->queues % options->groups);
    }
}

static size_t write_pull(const struct options *options, const struct consumer *consumer,
                         uint32_t opaque, uint8_t *out) {
    char group[NAME_BYTES];
    char queue_id[12];
    char offset[24];
    char flags[12];
    const bool commits = options->mode == MODE_ORDERLY;
    group_name(options, consumer, group);
    snprintf(queue_id, sizeof queue_id, "%d", consumer->queue_id);
    snprintf(offset, sizeof offset, "%" PRId64, consumer->next_offset);
    snprintf(flags, sizeof flags, "%d",
             (options->is_registered ? 0 : SUBSCRIPTION) | (commits ? COMMIT_OFFSET : 0));
    const struct field fields[] = {
        {"consumerGroup", group}, {"topic", options->topic}, {"queueId", queue_id},
        {"queueOffset", offset}, {"maxMsgNums", "32"}, {"sysFlag", flags},
        {"commitOffset", commits ? offset : "0"}, {"suspendTimeoutMillis", "20000"},
        {"subscription", options->is_registered ? "" : "*"}, {"subVersion", "0"},
        {"expressionType", "TAG"},
    };
    const struct request request = {options->serialization, CODE_PULL, opaque, fields,
                                    sizeof fields / sizeof fields[0], NULL, 0};
    return frame_build(&request, out);
}

static size_t write_lock(const struct options *options, const struct consumer *consumer,
                         uint32_t opaque, uint8_t *out) {
    char group[NAME_BYTES];
    char body[4 * NAME_BYTES];
    group_name(options, consumer, group);
    const int body_bytes = snprintf(
        body, sizeof body,
        "{\"clientId\":\"127.0.0.1@%d\",\"consumerGroup\":\"%s\","
        "\"mqSet\":[{\"brokerName\":\"%s\",\"queueId\":%d,\"topic\":\"%s\"}]}",
        consumer->number, group, options->broker_name, consumer->queue_id, options->topic);
    const struct request request = {options->serialization, CODE_LOCK, opaque, NULL, 0,
                                    (const uint8_t *)body, (size_t)body_bytes};
    return frame_build(&request, out);
}

size_t consumer_ask(const struct options *options, const struct consumer *consumer,
                    uint32_t opaque, uint8_t *out) {
    return consumer->locks_next ? write_lock(options, consumer, opaque, out)
                                : write_pull(options, consumer, opaque, out);
}

static int64_t take_lock(const struct reply *reply) {
    static const char LOCKED[] = "\"queueId\"";
    const bool is_locked = reply->code == REPLY_SUCCESS &&
                           memmem(reply->body, reply->body_bytes, LOCKED, strlen(LOCKED)) != NULL;
    return is_locked ? 0 : -1;
}

static int64_t take_pull(struct consumer *consumer, const struct reply *reply) {
    const int64_t next_offset = reply_number(reply, "nextBeginOffset");
    if (reply->code == REPLY_PULL_NOT_FOUND || reply->code == REPLY_PULL_MOVED) {
        consumer->next_offset = 0;
        return 0;
    }
    if (next_offset < 0) {
        return -1;
    }
    consumer->next_offset = next_offset;
    if (reply->code == REPLY_PULL_RETRY) {
        return 0; /* no message that the broker examined passes the filter */
    }
    const int64_t count = count_records(reply->body, reply->body_bytes);
    return reply->code != REPLY_SUCCESS || count <= 0 ? -1 : count;
}

int64_t consumer_take(const struct options *options, struct consumer *consumer,
                      const struct reply *reply) {
    if (consumer->locks_next) {
        consumer->locks_next = false;
        return take_lock(reply);
    }
    consumer->locks_next = options->mode == MODE_ORDERLY;
    return take_pull(consumer, reply);
}
