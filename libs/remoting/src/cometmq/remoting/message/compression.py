# SPDX-License-Identifier: Apache-2.0
"""Compression of message bodies: zlib, LZ4 frames and zstd frames, with bounded output.

A body of a few bytes can expand to gigabytes, so every caller that decompresses sets a limit.
"""

import sys
import zlib
from importlib import import_module
from typing import Any, Final

from cometmq.remoting.errors import CorruptRecord
from cometmq.remoting.message.flags import (
    COMPRESSION_MASK,
    COMPRESSION_SHIFT,
    CompressionType,
    SysFlag,
)
from cometmq.remoting.types import Buffer

DECOMPRESSED_BYTES_MAX: Final = 64 * 1024 * 1024
ZLIB_LEVEL: Final = 5  # the level that the Java client uses
ZSTD_LEVEL: Final = 3
_RATIO_MAX: Final = {
    CompressionType.UNSPECIFIED: 1,
    CompressionType.ZLIB: 1_032,
    CompressionType.LZ4: 255,
}
"""Bytes that one byte can expand to; for zstd, there is no such limit."""
_ZSTD_WINDOW_LOG_MAX: Final = 27  # 128 MiB


def compression_type(sys_flag: int) -> CompressionType:
    """Return a body's compression type; old clients set only the COMPRESSED bit. Raise
    CorruptRecord for an unknown one.
    """
    if not sys_flag & SysFlag.COMPRESSED:
        return CompressionType.UNSPECIFIED
    value = (sys_flag & COMPRESSION_MASK) >> COMPRESSION_SHIFT
    if value == CompressionType.UNSPECIFIED:
        return CompressionType.ZLIB
    try:
        return CompressionType(value)
    except ValueError:
        raise CorruptRecord(f"unknown compression type {value}") from None


def compress(
    body: Buffer, kind: CompressionType = CompressionType.ZLIB, *, level: int | None = None
) -> bytes:
    """Return the compressed body; `level` has no effect for LZ4."""
    if kind is CompressionType.LZ4:
        return _compress_lz4(body)
    if kind is CompressionType.ZSTD:
        zstd = _zstd()
        options: dict[int, int] = {
            zstd.CompressionParameter.compression_level: ZSTD_LEVEL if level is None else level,
            zstd.CompressionParameter.content_size_flag: 0,
        }
        shrunk: bytes = zstd.compress(body, options=options)
        return shrunk
    return zlib.compress(body, ZLIB_LEVEL if level is None else level)


def compression_bits(kind: CompressionType) -> int:
    """Return the sysFlag bits of a message with this compression."""
    return int(SysFlag.COMPRESSED) | kind << COMPRESSION_SHIFT


class TooLarge(CorruptRecord):
    """A body decompresses to more than its reader accepts."""


def expanded_bytes_max(body: Buffer, kind: CompressionType) -> int:
    """Return the most memory that `decompress` can use for a body, including a body that it
    refuses.
    """
    ratio = _RATIO_MAX.get(kind)
    return (
        DECOMPRESSED_BYTES_MAX if ratio is None else min(ratio * len(body), DECOMPRESSED_BYTES_MAX)
    )


def decompress(
    body: Buffer, kind: CompressionType, *, bytes_max: int = DECOMPRESSED_BYTES_MAX
) -> bytes:
    """Return the plain body; raise CorruptRecord if it is malformed, and TooLarge if it exceeds
    `bytes_max`.
    """
    if kind is CompressionType.UNSPECIFIED:
        return bytes(body)
    reader, errors = _reader(kind)
    try:
        plain: bytes = reader.decompress(body, max_length=bytes_max + 1)
    except errors as exc:
        raise CorruptRecord(f"{kind.name.lower()} body: {exc}") from exc
    if len(plain) > bytes_max:
        raise TooLarge(f"a body decompresses to more than {bytes_max} bytes")
    if not reader.eof:
        raise CorruptRecord(f"{kind.name.lower()} body ends early")
    return plain


def _reader(kind: CompressionType) -> tuple[Any, tuple[type[Exception], ...]]:
    """Return a decompressor, and the errors that it raises for malformed bodies."""
    if kind is CompressionType.LZ4:
        return _lz4().LZ4FrameDecompressor(), (RuntimeError, EOFError)
    if kind is CompressionType.ZSTD:
        zstd = _zstd()
        options: dict[int, int] = {zstd.DecompressionParameter.window_log_max: _ZSTD_WINDOW_LOG_MAX}
        return zstd.ZstdDecompressor(options=options), (zstd.ZstdError,)
    return zlib.decompressobj(), (zlib.error,)


def _lz4() -> Any:
    """Import LZ4 for the first body that needs it: it takes 0.2 MiB of memory."""
    return import_module("lz4.frame")


def _zstd() -> Any:
    """Import zstd for the first body that needs it: it takes 0.2 MiB of memory."""
    return import_module("compression.zstd" if sys.version_info >= (3, 14) else "backports.zstd")


def _compress_lz4(body: Buffer) -> bytes:
    lz4 = _lz4()
    compressed: bytes = lz4.compress(
        body,
        block_size=lz4.BLOCKSIZE_MAX4MB,
        block_linked=False,
        store_size=False,
    )
    return compressed
