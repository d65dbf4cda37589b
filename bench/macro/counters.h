/* SPDX-License-Identifier: Apache-2.0 */
/* The load generator's counters, and the JSON object that it prints at the end. */
#ifndef COMETMQ_BENCH_COUNTERS_H
#define COMETMQ_BENCH_COUNTERS_H

#include "histogram.h"

enum { CODES = 256 }; /* a larger response code is counted modulo 256 */

struct counters {
    uint64_t requests;
    uint64_t messages;
    uint64_t errors;
    uint64_t by_code[CODES];
    struct histogram latency;
};

struct report {
    const char *mode;
    double seconds;
    double generator_cpu_seconds;
    uint64_t messages_in_all; /* including the warm-up and the time after the measurement */
    uint64_t errors_in_all;
};

/* Count one answer. */
void counters_add(struct counters *counters, int code, uint64_t latency_ns);
void counters_clear(struct counters *counters);

/* Print rates and latencies of the measured time, and all codes from its start to the end. */
void report_print(const struct report *report, const struct counters *counted,
                  const uint64_t *by_code);

/* Processor time of this process. */
double cpu_seconds(void);

#endif
