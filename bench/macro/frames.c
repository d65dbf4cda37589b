/* SPDX-License-Identifier: Apache-2.0 */
/* Builds and reads remoting frames. Layout: length word, header word (serialization in the
 * upper byte, header size below), header, body. */
#include "frames.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { VERSION_4_9_4 = 401, PREFIX_BYTES = 8, BINARY_OPAQUE_AT = 13, RECORD_BYTES_MIN = 91 };
static const char BORN_MARK[] = "1234567890123";
static const char MESSAGE_MARK[] = "89ABCDEF01234567";
static const char SIGNATURE_MARK[SIGNATURE_CHARS + 1] = "SIGNATURE-------------------";

static int by_name(const void *one, const void *other) {
    return strcmp(((const struct field *)one)->key, ((const struct field *)other)->key);
}

/* Return what a client signs; the caller frees it. */
static uint8_t *signed_content(const struct request *request, size_t *size) {
    struct field fields[FIELDS_MAX];
    const size_t count = request->field_count;
    size_t room = request->body_bytes + 1;
    for (size_t i = 0; i < count; i++) {
        fields[i] = request->fields[i];
        room += strlen(fields[i].value);
    }
    qsort(fields, count, sizeof fields[0], by_name);
    uint8_t *content = malloc(room);
    uint8_t *at = content;
    for (size_t i = 0; i < count; i++) {
        at = mempcpy(at, fields[i].value, strlen(fields[i].value));
    }
    if (request->body_bytes > 0) {
        at = mempcpy(at, request->body, request->body_bytes);
    }
    *size = (size_t)(at - content);
    return content;
}

static void put16(uint8_t *at, uint32_t value) {
    at[0] = (uint8_t)(value >> 8);
    at[1] = (uint8_t)value;
}

static void put32(uint8_t *at, uint32_t value) {
    put16(at, value >> 16);
    put16(at + 2, value & 0xFFFF);
}

static uint32_t get32(const uint8_t *at) {
    return (uint32_t)at[0] << 24 | (uint32_t)at[1] << 16 | (uint32_t)at[2] << 8 | at[3];
}

static size_t json_text(char *out, const char *text) {
    char *at = out;
    for (; *text != '\0'; text++) {
        if ((unsigned char)*text < 0x20) {
            at += sprintf(at, "\\u%04x", (unsigned char)*text);
        } else {
            *at++ = *text;
        }
    }
    return (size_t)(at - out);
}

/* Field order and separators as fastjson writes them. */
static size_t json_header(const struct request *request, char *out) {
    char *at = out + sprintf(out, "{\"code\":%d,\"extFields\":{", request->code);
    for (size_t i = 0; i < request->field_count; i++) {
        at += sprintf(at, "%s\"%s\":\"", i == 0 ? "" : ",", request->fields[i].key);
        at += json_text(at, request->fields[i].value);
        *at++ = '"';
    }
    at += sprintf(at,
                  "},\"flag\":0,\"language\":\"JAVA\",\"opaque\":%u,"
                  "\"serializeTypeCurrentRPC\":\"JSON\",\"version\":%d}",
                  request->opaque, VERSION_4_9_4);
    return (size_t)(at - out);
}

static size_t binary_header(const struct request *request, uint8_t *out) {
    memset(out, 0, 21); /* language JAVA, the request flag and an empty remark are all zero */
    put16(out, (uint32_t)request->code);
    put16(out + 3, VERSION_4_9_4);
    put32(out + 5, request->opaque);
    uint8_t *at = out + 21;
    for (size_t i = 0; i < request->field_count; i++) {
        const size_t key_bytes = strlen(request->fields[i].key);
        const size_t value_bytes = strlen(request->fields[i].value);
        put16(at, (uint32_t)key_bytes);
        memcpy(at + 2, request->fields[i].key, key_bytes);
        at += 2 + key_bytes;
        put32(at, (uint32_t)value_bytes);
        memcpy(at + 4, request->fields[i].value, value_bytes);
        at += 4 + value_bytes;
    }
    put32(out + 17, (uint32_t)(at - (out + 21)));
    return (size_t)(at - out);
}

static size_t write_frame(const struct request *request, uint8_t *out) {
    const size_t header_bytes = request->serialization == SERIALIZATION_JSON
                                    ? json_header(request, (char *)out + PREFIX_BYTES)
                                    : binary_header(request, out + PREFIX_BYTES);
    const size_t size = PREFIX_BYTES + header_bytes + request->body_bytes;
    put32(out, (uint32_t)(size - 4));
    put32(out + 4, (uint32_t)request->serialization << 24 | (uint32_t)header_bytes);
    if (request->body_bytes > 0) {
        memcpy(out + PREFIX_BYTES + header_bytes, request->body, request->body_bytes);
    }
    return size;
}

/* Add the access key, and a signature if there is one. */
static struct request with_key(const struct request *request, struct field *fields,
                               const char *signature) {
    struct request result = *request;
    if (request->field_count > 0) {
        memcpy(fields, request->fields, request->field_count * sizeof fields[0]);
    }
    fields[result.field_count++] = (struct field){"AccessKey", signing_key()};
    if (signature != NULL) {
        fields[result.field_count++] = (struct field){"Signature", signature};
    }
    result.fields = fields;
    return result;
}

size_t frame_build(const struct request *request, uint8_t *out) {
    if (signing_key() == NULL) {
        return write_frame(request, out);
    }
    struct field fields[FIELDS_MAX];
    char signature[SIGNATURE_CHARS + 1] = {0};
    const struct request unsigned_request = with_key(request, fields, NULL);
    size_t size;
    uint8_t *content = signed_content(&unsigned_request, &size);
    signing_sign(content, size, signature);
    free(content);
    const struct request signed_request = with_key(request, fields, signature);
    return write_frame(&signed_request, out);
}

static size_t offset_of(const uint8_t *bytes, size_t size, const char *mark) {
    const uint8_t *found = memmem(bytes, size, mark, strlen(mark));
    if (found == NULL) {
        fprintf(stderr, "loadgen: template without %s\n", mark);
        exit(1);
    }
    return (size_t)(found - bytes);
}

/* Append properties in their wire format. */
static void append_properties(char *at, const char *properties) {
    if (*properties != '\0') {
        *at++ = '\x02';
    }
    for (; *properties != '\0'; properties++) {
        *at++ = *properties == '=' ? '\x01' : *properties == ',' ? '\x02' : *properties;
    }
    *at = '\0';
}

struct template send_template(const struct send_options *options) {
    char properties[80 + PROPERTIES_BYTES_MAX];
    char queue_id[12];
    const int fixed = snprintf(properties, sizeof properties,
                               "UNIQ_KEY\x01%016llX%s\x02WAIT\x01true",
                               (unsigned long long)options->producer, MESSAGE_MARK);
    append_properties(properties + fixed, options->properties);
    snprintf(queue_id, sizeof queue_id, "%d", options->queue_id);
    const struct field fields[] = {
        {"a", options->group}, {"b", options->topic}, {"c", "TBW102"}, {"d", "4"},
        {"e", queue_id},       {"f", "0"},            {"g", BORN_MARK}, {"h", "0"},
        {"i", properties},     {"j", "0"},            {"k", "false"},  {"m", "false"},
    };
    uint8_t *body = malloc(options->body_bytes + 1);
    memset(body, 'x', options->body_bytes);
    const struct request request = {options->serialization, CODE_SEND_V2, OPAQUE_BASE, fields,
                                    sizeof fields / sizeof fields[0], body, options->body_bytes};
    struct template result = {.serialization = options->serialization,
                              .bytes = malloc(4096 + options->body_bytes)};
    if (signing_key() == NULL) {
        result.size = write_frame(&request, result.bytes);
    } else {
        struct field own[FIELDS_MAX];
        const struct request unsigned_request = with_key(&request, own, NULL);
        result.content = signed_content(&unsigned_request, &result.content_size);
        const struct request signed_request = with_key(&request, own, SIGNATURE_MARK);
        result.size = write_frame(&signed_request, result.bytes);
    }
    const size_t head = result.size - options->body_bytes;
    result.born_at = offset_of(result.bytes, head, BORN_MARK);
    result.message_at = offset_of(result.bytes, head, MESSAGE_MARK);
    if (strchr(options->properties, '#') != NULL) {
        result.digit_at = offset_of(result.bytes, head, "#");
    }
    if (result.content != NULL) {
        const size_t content_head = result.content_size - options->body_bytes;
        result.signature_at = offset_of(result.bytes, head, SIGNATURE_MARK);
        result.content_born_at = offset_of(result.content, content_head, BORN_MARK);
        result.content_message_at = offset_of(result.content, content_head, MESSAGE_MARK);
        if (result.digit_at != 0) {
            result.content_digit_at = offset_of(result.content, content_head, "#");
        }
    }
    result.opaque_at = options->serialization == SERIALIZATION_JSON
                           ? offset_of(result.bytes, head, "\"opaque\":") + strlen("\"opaque\":")
                           : BINARY_OPAQUE_AT;
    free(body);
    return result;
}

static void put_digits(uint8_t *at, size_t width, uint64_t value) {
    for (size_t i = width; i-- > 0; value /= 10) {
        at[i] = (uint8_t)('0' + value % 10);
    }
}

void template_patch(struct template *template, uint32_t opaque, uint64_t born_ms,
                    uint64_t message) {
    if (template->serialization == SERIALIZATION_JSON) {
        put_digits(template->bytes + template->opaque_at, 10, opaque);
    } else {
        put32(template->bytes + template->opaque_at, opaque);
    }
    put_digits(template->bytes + template->born_at, 13, born_ms);
    if (template->digit_at != 0) { /* advances slowly, so that every queue gets every digit */
        template->bytes[template->digit_at] = (uint8_t)('0' + message / 16 % 10);
    }
    uint8_t *at = template->bytes + template->message_at;
    for (size_t i = 16; i-- > 0; message >>= 4) {
        at[i] = (uint8_t) "0123456789ABCDEF"[message & 15];
    }
    if (template->content != NULL) {
        uint8_t *content = template->content;
        memcpy(content + template->content_born_at, template->bytes + template->born_at, 13);
        memcpy(content + template->content_message_at, template->bytes + template->message_at, 16);
        if (template->digit_at != 0) {
            content[template->content_digit_at] = template->bytes[template->digit_at];
        }
        signing_sign(content, template->content_size,
                     (char *)template->bytes + template->signature_at);
    }
}

size_t frame_size(const uint8_t *data, size_t available) {
    return available < 4 ? 0 : 4 + (size_t)get32(data);
}

static bool json_number(const struct reply *reply, const char *mark, int64_t *value) {
    const uint8_t *found = memmem(reply->header, reply->header_bytes, mark, strlen(mark));
    if (found == NULL) {
        return false;
    }
    const uint8_t *at = found + strlen(mark);
    const uint8_t *end = reply->header + reply->header_bytes;
    while (at < end && *at == ' ') {
        at++;
    }
    const uint8_t *first = at;
    int64_t result = 0;
    for (; at < end && *at >= '0' && *at <= '9'; at++) {
        result = result * 10 + (*at - '0');
    }
    *value = result;
    return at > first;
}

static bool parse_json(struct reply *reply) {
    int64_t code = 0;
    int64_t opaque = 0;
    int64_t flag = 0;
    const bool is_complete = json_number(reply, "\"code\":", &code) &&
                             json_number(reply, "\"opaque\":", &opaque) &&
                             json_number(reply, "\"flag\":", &flag);
    reply->code = (int)code;
    reply->opaque = (uint32_t)opaque;
    reply->is_response = (flag & 1) != 0;
    return is_complete;
}

static bool parse_binary(struct reply *reply) {
    if (reply->header_bytes < 21) {
        return false;
    }
    reply->code = reply->header[0] << 8 | reply->header[1];
    reply->opaque = get32(reply->header + 5);
    reply->is_response = (reply->header[12] & 1) != 0;
    return true;
}

bool reply_parse(const uint8_t *frame, size_t size, struct reply *reply) {
    if (size < PREFIX_BYTES) {
        return false;
    }
    const uint32_t word = get32(frame + 4);
    reply->serialization = (enum serialization)(word >> 24);
    reply->header_bytes = word & 0xFFFFFF;
    if (reply->header_bytes > size - PREFIX_BYTES) {
        return false;
    }
    reply->header = frame + PREFIX_BYTES;
    reply->body = reply->header + reply->header_bytes;
    reply->body_bytes = size - PREFIX_BYTES - reply->header_bytes;
    return reply->serialization == SERIALIZATION_JSON ? parse_json(reply) : parse_binary(reply);
}

static int64_t binary_number(const struct reply *reply, const char *key) {
    const size_t key_bytes = strlen(key);
    const uint8_t *found = memmem(reply->header, reply->header_bytes, key, key_bytes);
    const uint8_t *end = reply->header + reply->header_bytes;
    if (found == NULL || found + key_bytes + 4 > end) {
        return -1;
    }
    const size_t value_bytes = get32(found + key_bytes);
    const uint8_t *at = found + key_bytes + 4;
    int64_t result = 0;
    for (size_t i = 0; i < value_bytes && at + i < end; i++) {
        result = result * 10 + (at[i] - '0');
    }
    return result;
}

int64_t reply_number(const struct reply *reply, const char *key) {
    if (reply->serialization == SERIALIZATION_ROCKETMQ) {
        return binary_number(reply, key);
    }
    char mark[64];
    int64_t value = -1;
    snprintf(mark, sizeof mark, "\"%s\":\"", key);
    return json_number(reply, mark, &value) ? value : -1;
}

int64_t count_records(const uint8_t *body, size_t size) {
    int64_t count = 0;
    for (size_t at = 0; at < size; count++) {
        const size_t record_bytes = size - at < RECORD_BYTES_MIN ? 0 : get32(body + at);
        if (record_bytes < RECORD_BYTES_MIN || record_bytes > size - at) {
            return -1;
        }
        at += record_bytes;
    }
    return count;
}
