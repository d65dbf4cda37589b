/* SPDX-License-Identifier: Apache-2.0 */
/* Signs requests for a server with access control: HMAC-SHA1 in Base64 over the values of all
 * fields in the order of their names, and the body. */
#ifndef COMETMQ_BENCH_SIGNING_H
#define COMETMQ_BENCH_SIGNING_H

#include <stddef.h>
#include <stdint.h>

enum { SIGNATURE_CHARS = 28 };

/* Set the key of all signatures; with an empty one, nothing is signed. */
void signing_set(const char *access_key, const char *secret_key);

/* The access key; NULL if nothing is signed. */
const char *signing_key(void);

/* Write the signature of some bytes, without a terminator. */
void signing_sign(const uint8_t *content, size_t size, char *out);

#endif
