# SPDX-License-Identifier: Apache-2.0
"""Compressed bodies are decompressed in full, up to a limit, or rejected."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cometmq.remoting.errors import CorruptRecord
from cometmq.remoting.message.compression import (
    compress,
    compression_bits,
    compression_type,
    decompress,
)
from cometmq.remoting.message.flags import CompressionType

KINDS = [CompressionType.ZLIB, CompressionType.LZ4, CompressionType.ZSTD]


@given(st.sampled_from(KINDS), st.binary(max_size=2000))
def test_a_compressed_body_is_restored(kind: CompressionType, body: bytes) -> None:
    assert decompress(compress(body, kind), kind) == body


@pytest.mark.parametrize("kind", KINDS)
def test_a_bomb_is_refused_at_the_bound(kind: CompressionType) -> None:
    bomb = compress(bytes(1_000_000), kind)
    assert len(decompress(bomb, kind, bytes_max=1_000_000)) == 1_000_000
    with pytest.raises(CorruptRecord, match="more than 999999"):
        decompress(bomb, kind, bytes_max=999_999)


@pytest.mark.parametrize("kind", KINDS)
def test_a_body_cut_anywhere_is_refused(kind: CompressionType) -> None:
    whole = compress(bytes(range(256)) * 8, kind)
    for length in range(len(whole) - 8):
        with pytest.raises(CorruptRecord):
            decompress(whole[:length], kind)


@given(st.sampled_from(KINDS), st.binary(max_size=300))
def test_garbage_raises_only_corrupt_record(kind: CompressionType, body: bytes) -> None:
    try:
        decompress(body, kind, bytes_max=10_000)
    except CorruptRecord:
        return


def test_the_type_follows_the_bits_and_old_clients_mean_zlib() -> None:
    assert compression_type(0) is CompressionType.UNSPECIFIED
    assert compression_type(0x1) is CompressionType.ZLIB
    for kind in KINDS:
        assert compression_type(compression_bits(kind)) is kind
    with pytest.raises(CorruptRecord):
        compression_type(0x701)


def test_a_kind_of_compression_is_printed_by_its_name() -> None:
    assert f"{CompressionType.ZSTD} {CompressionType.ZSTD:d}" == "ZSTD 2"
