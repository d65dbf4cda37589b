/* SPDX-License-Identifier: Apache-2.0 */
#ifndef COMETMQ_BENCH_FIRST_H
#define COMETMQ_BENCH_FIRST_H

#include "options.h"

/* Repeat a request until the server accepts it; print that time. Return the exit status. */
int run_first(const struct options *options);

#endif
