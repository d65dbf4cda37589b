/* SPDX-License-Identifier: Apache-2.0 */
/* TLS for the load generator, by OpenSSL. Both servers are measured with the same cipher. */
#include "tls.h"

#ifdef WITH_OPENSSL

#include <openssl/err.h>
#include <openssl/ssl.h>

static _Noreturn void refuse(const char *what) {
    fprintf(stderr, "loadgen: %s: ", what);
    ERR_print_errors_fp(stderr);
    fputc('\n', stderr);
    exit(1);
}

static ssize_t result(SSL *ssl, int count) {
    if (count > 0) {
        return count;
    }
    const int error = SSL_get_error(ssl, count);
    if (error == SSL_ERROR_ZERO_RETURN) {
        return 0;
    }
    errno = error == SSL_ERROR_WANT_READ || error == SSL_ERROR_WANT_WRITE ? EAGAIN : EPROTO;
    return -1;
}

static ssize_t tls_send(void *state, const uint8_t *bytes, size_t size) {
    return result(state, SSL_write(state, bytes, (int)size));
}

static ssize_t tls_receive(void *state, uint8_t *bytes, size_t size) {
    return result(state, SSL_read(state, bytes, (int)size));
}

static SSL_CTX *context_make(void) {
    SSL_CTX *context = SSL_CTX_new(TLS_client_method());
    if (context == NULL || !SSL_CTX_set_ciphersuites(context, "TLS_AES_128_GCM_SHA256") ||
        !SSL_CTX_set_cipher_list(context, "ECDHE+AES128+AESGCM")) {
        refuse("OpenSSL");
    }
    SSL_CTX_set_mode(context, SSL_MODE_ENABLE_PARTIAL_WRITE | SSL_MODE_ACCEPT_MOVING_WRITE_BUFFER);
    SSL_CTX_set_read_ahead(context, 1);
    return context;
}

void tls_open(struct stream *stream) {
    static const struct layer layer = {tls_send, tls_receive};
    static SSL_CTX *context;
    if (context == NULL) {
        context = context_make();
    }
    SSL *ssl = SSL_new(context);
    if (ssl == NULL || !SSL_set_fd(ssl, stream->fd) || SSL_connect(ssl) != 1) {
        refuse("TLS handshake");
    }
    stream->layer = &layer;
    stream->state = ssl;
}

#else

void tls_open(struct stream *stream) {
    (void)stream;
    fputs("loadgen: it was built without OpenSSL: install libssl-dev\n", stderr);
    exit(1);
}

#endif
