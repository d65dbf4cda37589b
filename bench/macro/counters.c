/* SPDX-License-Identifier: Apache-2.0 */
/* Counts answers and prints the final report. */
#include "counters.h"

#include <inttypes.h>
#include <stdio.h>
#include <sys/resource.h>

void counters_add(struct counters *counters, int code, uint64_t latency_ns) {
    counters->requests++;
    counters->by_code[code & (CODES - 1)]++;
    histogram_add(&counters->latency, latency_ns);
}

void counters_clear(struct counters *counters) {
    memset(counters, 0, sizeof *counters);
}

static void print_codes(const uint64_t *by_code) {
    const char *separator = "";
    for (int code = 0; code < CODES; code++) {
        if (by_code[code] > 0) {
            printf("%s\"%d\": %" PRIu64, separator, code, by_code[code]);
            separator = ", ";
        }
    }
}

void report_print(const struct report *report, const struct counters *counted,
                  const uint64_t *by_code) {
    const struct histogram *latency = &counted->latency;
    printf("{\"mode\": \"%s\", \"seconds\": %.4f, \"requests\": %" PRIu64, report->mode,
           report->seconds, counted->requests);
    printf(", \"messages\": %" PRIu64 ", \"messages_in_all\": %" PRIu64, counted->messages,
           report->messages_in_all);
    printf(", \"requests_per_s\": %.1f, \"messages_per_s\": %.1f, \"generator_cpu_seconds\": %.3f",
           (double)counted->requests / report->seconds, (double)counted->messages / report->seconds,
           report->generator_cpu_seconds);
    printf(", \"latency_us\": {\"p50\": %.1f, \"p99\": %.1f, \"p999\": %.1f, \"p9999\": %.1f",
           histogram_percentile_us(latency, 0.5), histogram_percentile_us(latency, 0.99),
           histogram_percentile_us(latency, 0.999), histogram_percentile_us(latency, 0.9999));
    printf(", \"max\": %.1f}", (double)latency->max_ns / 1000.0);
    printf(", \"errors\": %" PRIu64 ", \"codes\": {", report->errors_in_all);
    print_codes(by_code);
    puts("}}");
}

double cpu_seconds(void) {
    struct rusage usage;
    getrusage(RUSAGE_SELF, &usage);
    return (double)(usage.ru_utime.tv_sec + usage.ru_stime.tv_sec) +
           (double)(usage.ru_utime.tv_usec + usage.ru_stime.tv_usec) / 1e6;
}
