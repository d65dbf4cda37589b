/* SPDX-License-Identifier: Apache-2.0 */
/* HMAC-SHA1 (RFC 2104, RFC 3174); the state after the padded key is kept. With PORTABLE defined, it
 * does without the instructions of x86 processors. */
#include "signing.h"

#include <stdbool.h>
#include <string.h>
#if defined(__x86_64__) && !defined(PORTABLE)
#include <cpuid.h>
#include <immintrin.h>
#endif

enum { BLOCK_BYTES = 64, DIGEST_BYTES = 20, WORDS = 5, ROUNDS = 80 };

struct sha1 {
    uint32_t state[WORDS];
    size_t size; /* of everything hashed */
    size_t used; /* of the block */
    uint8_t block[BLOCK_BYTES];
};

static const char *own_key;
static struct sha1 inner, outer;

static uint32_t rotate(uint32_t value, int bits) {
    return value << bits | value >> (32 - bits);
}

static void compress_in_c(uint32_t *state, const uint8_t *block) {
    uint32_t words[ROUNDS];
    for (int i = 0; i < 16; i++) {
        uint32_t word;
        memcpy(&word, block + 4 * i, sizeof word);
        words[i] = __builtin_bswap32(word);
    }
    for (int i = 16; i < ROUNDS; i++) {
        words[i] = rotate(words[i - 3] ^ words[i - 8] ^ words[i - 14] ^ words[i - 16], 1);
    }
    uint32_t a = state[0], b = state[1], c = state[2], d = state[3], e = state[4];
    for (int i = 0; i < ROUNDS; i++) {
        const uint32_t mixed = i < 20   ? ((b & c) | (~b & d)) + 0x5A827999
                               : i < 40 ? (b ^ c ^ d) + 0x6ED9EBA1
                               : i < 60 ? ((b & c) | (b & d) | (c & d)) + 0x8F1BBCDC
                                        : (b ^ c ^ d) + 0xCA62C1D6;
        const uint32_t next = rotate(a, 5) + mixed + e + words[i];
        e = d;
        d = c;
        c = rotate(b, 30);
        b = a;
        a = next;
    }
    state[0] += a;
    state[1] += b;
    state[2] += c;
    state[3] += d;
    state[4] += e;
}

#if defined(__x86_64__) && !defined(PORTABLE)
/* Four rounds; the words of the group after the next three follow from these four. */
#define GROUP(i)                                                                                   \
    do {                                                                                           \
        if ((i) >= 4) {                                                                            \
            words[(i) & 3] = _mm_sha1msg2_epu32(                                                   \
                _mm_xor_si128(_mm_sha1msg1_epu32(words[(i) & 3], words[((i) + 1) & 3]),            \
                              words[((i) + 2) & 3]),                                               \
                words[((i) + 3) & 3]);                                                             \
        }                                                                                          \
        const __m128i added = (i) == 0 ? _mm_add_epi32(e, words[0])                                \
                                       : _mm_sha1nexte_epu32(e, words[(i) & 3]);                   \
        e = abcd;                                                                                  \
        abcd = _mm_sha1rnds4_epu32(abcd, added, (i) / 5);                                          \
    } while (0)

/* The same with the processor's instructions: a fifth of the time. */
__attribute__((target("sha,sse4.1"))) static void compress_natively(uint32_t *state,
                                                                    const uint8_t *block) {
    const __m128i order = _mm_set_epi64x(0x0001020304050607, 0x08090A0B0C0D0E0F);
    const __m128i abcd_before = _mm_shuffle_epi32(_mm_loadu_si128((const __m128i *)state), 0x1B);
    const __m128i e_before = _mm_set_epi32((int)state[4], 0, 0, 0);
    __m128i abcd = abcd_before, e = e_before, words[4];
    for (int i = 0; i < 4; i++) {
        words[i] = _mm_shuffle_epi8(_mm_loadu_si128((const __m128i *)block + i), order);
    }
    GROUP(0); GROUP(1); GROUP(2); GROUP(3); GROUP(4);
    GROUP(5); GROUP(6); GROUP(7); GROUP(8); GROUP(9);
    GROUP(10); GROUP(11); GROUP(12); GROUP(13); GROUP(14);
    GROUP(15); GROUP(16); GROUP(17); GROUP(18); GROUP(19);
    abcd = _mm_add_epi32(abcd, abcd_before);
    e = _mm_sha1nexte_epu32(e, e_before);
    _mm_storeu_si128((__m128i *)state, _mm_shuffle_epi32(abcd, 0x1B));
    state[4] = (uint32_t)_mm_extract_epi32(e, 3);
}

static bool has_sha(void) {
    unsigned a, b, c, d;
    return __get_cpuid_count(7, 0, &a, &b, &c, &d) && (b & bit_SHA) != 0;
}
#endif

static void (*compress)(uint32_t *, const uint8_t *) = compress_in_c;

static void update(struct sha1 *sha, const uint8_t *data, size_t size) {
    sha->size += size;
    while (size > 0) {
        const size_t room = BLOCK_BYTES - sha->used;
        const size_t part = size < room ? size : room;
        memcpy(sha->block + sha->used, data, part);
        sha->used += part;
        data += part;
        size -= part;
        if (sha->used == BLOCK_BYTES) {
            compress(sha->state, sha->block);
            sha->used = 0;
        }
    }
}

static void finish(struct sha1 *sha, uint8_t *digest) {
    static const uint8_t PADDING[BLOCK_BYTES] = {0x80};
    const uint64_t bits = __builtin_bswap64((uint64_t)sha->size * 8);
    const size_t used = sha->used;
    update(sha, PADDING, (used < 56 ? 56 : 120) - used);
    update(sha, (const uint8_t *)&bits, sizeof bits);
    for (int i = 0; i < WORDS; i++) {
        const uint32_t word = __builtin_bswap32(sha->state[i]);
        memcpy(digest + 4 * i, &word, sizeof word);
    }
}

static struct sha1 keyed(const char *secret_key, uint8_t pad) {
    struct sha1 sha = {.state = {0x67452301, 0xEFCDAB89, 0x98BADCFE, 0x10325476, 0xC3D2E1F0}};
    uint8_t block[BLOCK_BYTES];
    memset(block, pad, sizeof block);
    for (size_t i = 0; secret_key[i] != '\0' && i < BLOCK_BYTES; i++) {
        block[i] ^= (uint8_t)secret_key[i];
    }
    update(&sha, block, sizeof block);
    return sha;
}

void signing_set(const char *access_key, const char *secret_key) {
    own_key = *access_key == '\0' ? NULL : access_key;
#if defined(__x86_64__) && !defined(PORTABLE)
    if (has_sha()) {
        compress = compress_natively;
    }
#endif
    inner = keyed(secret_key, 0x36);
    outer = keyed(secret_key, 0x5C);
}

const char *signing_key(void) {
    return own_key;
}

void signing_sign(const uint8_t *content, size_t size, char *out) {
    static const char DIGITS[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    uint8_t digest[DIGEST_BYTES + 1] = {0};
    struct sha1 sha = inner;
    update(&sha, content, size);
    finish(&sha, digest);
    sha = outer;
    update(&sha, digest, DIGEST_BYTES);
    finish(&sha, digest);
    digest[DIGEST_BYTES] = 0;
    for (size_t i = 0; i < DIGEST_BYTES; i += 3, out += 4) {
        const uint32_t word =
            (uint32_t)digest[i] << 16 | (uint32_t)digest[i + 1] << 8 | digest[i + 2];
        for (int j = 0; j < 4; j++) {
            out[j] = DIGITS[word >> (18 - 6 * j) & 63];
        }
    }
    out[-1] = '=';
}
