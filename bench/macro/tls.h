/* SPDX-License-Identifier: Apache-2.0 */
/* TLS for the load generator, by OpenSSL; it does not verify the server. */
#ifndef COMETMQ_BENCH_TLS_H
#define COMETMQ_BENCH_TLS_H

#include "streams.h"

/* Complete the handshake of a blocking socket, and encrypt the stream from now on; the program ends
 * if that fails, or if it was built without OpenSSL. */
void tls_open(struct stream *stream);

#endif
