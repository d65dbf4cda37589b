/* SPDX-License-Identifier: Apache-2.0 */
/* The part of RocketMQ's remoting frames that a load generator needs: requests are built once and
 * patched per message; of an answer, only code, opaque, flag and one ext field are read. */
#ifndef COMETMQ_BENCH_FRAMES_H
#define COMETMQ_BENCH_FRAMES_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "signing.h"

enum { FIELDS_MAX = 16 };
enum { FRAME_BYTES_MAX = 16 * 1024 * 1024, OPAQUE_BASE = 1000000000, PROPERTIES_BYTES_MAX = 256 };
enum serialization { SERIALIZATION_JSON = 0, SERIALIZATION_ROCKETMQ = 1 };
enum code { CODE_SEND_V2 = 310, CODE_PULL = 11, CODE_LOCK = 41, CODE_ROUTE = 105 };
enum reply_code { REPLY_SUCCESS = 0, REPLY_PULL_NOT_FOUND = 19, REPLY_PULL_RETRY = 20,
                  REPLY_PULL_MOVED = 21 };

struct field {
    const char *key;
    const char *value;
};

struct request {
    enum serialization serialization;
    int code;
    uint32_t opaque; /* >= OPAQUE_BASE, so its decimal form always has ten digits */
    const struct field *fields;
    size_t field_count;
    const uint8_t *body;
    size_t body_bytes;
};

/* A request, and the positions to patch for each message. */
struct template {
    enum serialization serialization;
    uint8_t *bytes;
    size_t size;
    size_t opaque_at;
    size_t born_at;    /* 13 decimal digits: milliseconds */
    size_t message_at; /* 16 hexadecimal digits: the second half of UNIQ_KEY */
    size_t digit_at;   /* the digit that changes; 0: no such digit */
    size_t signature_at; /* 0: the request is not signed */
    uint8_t *content;    /* what is signed, with the same positions to patch */
    size_t content_size;
    size_t content_born_at;
    size_t content_message_at;
    size_t content_digit_at;
};

struct reply {
    enum serialization serialization;
    int code;
    uint32_t opaque;
    bool is_response;
    const uint8_t *header;
    size_t header_bytes;
    const uint8_t *body;
    size_t body_bytes;
};

struct send_options {
    enum serialization serialization;
    const char *group;
    const char *topic;
    int queue_id;
    size_t body_bytes;
    uint64_t producer; /* the first half of every UNIQ_KEY */
    const char *properties; /* NAME=VALUE,NAME=VALUE with at most one # */
};

/* Write a frame, signed if there is an access key, into out (room for 1 KiB plus the texts and the
 * body); return its size. */
size_t frame_build(const struct request *request, uint8_t *out);

/* Build a SEND_MESSAGE_V2 as the Java producer sends it; the caller frees bytes. */
struct template send_template(const struct send_options *options);

/* Patch the template in place for the next message. */
void template_patch(struct template *template, uint32_t opaque, uint64_t born_ms,
                    uint64_t message);

/* Total size of the frame at data, or 0 if its length word is incomplete. */
size_t frame_size(const uint8_t *data, size_t available);

/* Read one whole frame; false if it is malformed. */
bool reply_parse(const uint8_t *frame, size_t size, struct reply *reply);

/* The decimal value of an ext field, or -1. */
int64_t reply_number(const struct reply *reply, const char *key);

/* Number of message records in a pull's body, or -1 if it is malformed. */
int64_t count_records(const uint8_t *body, size_t size);

#endif
