/* SPDX-License-Identifier: Apache-2.0 */
/* Latency histogram: 128 linear buckets per power of two, so any percentile is within 0.8 %. */
#ifndef COMETMQ_BENCH_HISTOGRAM_H
#define COMETMQ_BENCH_HISTOGRAM_H

#include <stddef.h>
#include <stdint.h>
#include <string.h>

enum { HISTOGRAM_BITS = 7, HISTOGRAM_SUB = 1 << HISTOGRAM_BITS, HISTOGRAM_SIZE = 58 * 128 };

struct histogram {
    uint64_t counts[HISTOGRAM_SIZE];
    uint64_t total;
    uint64_t max_ns;
};

static inline void histogram_add(struct histogram *histogram, uint64_t value_ns) {
    size_t bucket = (size_t)value_ns;
    if (value_ns >= HISTOGRAM_SUB) {
        const int shift = 63 - __builtin_clzll(value_ns) - HISTOGRAM_BITS;
        bucket = (size_t)(shift + 1) * HISTOGRAM_SUB + ((value_ns >> shift) & (HISTOGRAM_SUB - 1));
    }
    histogram->counts[bucket]++;
    histogram->total++;
    if (value_ns > histogram->max_ns) {
        histogram->max_ns = value_ns;
    }
}

/* Lower bound, in microseconds, of the bucket that holds the given share of all values. */
static inline double histogram_percentile_us(const struct histogram *histogram, double share) {
    const uint64_t rank = (uint64_t)((double)histogram->total * share);
    uint64_t seen = 0;
    for (size_t bucket = 0; bucket < HISTOGRAM_SIZE; bucket++) {
        seen += histogram->counts[bucket];
        if (seen > rank) {
            const size_t power = bucket / HISTOGRAM_SUB;
            const uint64_t low = bucket % HISTOGRAM_SUB;
            const uint64_t ns = power == 0 ? low : (low + HISTOGRAM_SUB) << (power - 1);
            return (double)ns / 1000.0;
        }
    }
    return (double)histogram->max_ns / 1000.0;
}

#endif
