# SPDX-License-Identifier: Apache-2.0
"""Tests the generator's signatures, with and without the processor's instructions for SHA-1."""

import base64
import ctypes
import hmac
import subprocess

import pytest
from macro.native import SOURCES

KEY, SECRET = b"benchUser1", b"benchUserSecret1"
SIGNATURE_CHARS = 28


@pytest.fixture(params=[(), ("-DPORTABLE",)], ids=["default", "portable"], scope="module")
def signing(request, tmp_path_factory):
    library = tmp_path_factory.mktemp("signing") / "signing.so"
    flags = ("-O2", "-std=gnu11", "-D_GNU_SOURCE", "-shared", "-fPIC", *request.param)
    subprocess.run(["cc", *flags, "-o", library, SOURCES / "signing.c"], check=True)
    return ctypes.CDLL(str(library))


def test_signatures_are_hmac_sha1_for_content_of_any_size(signing):
    signing.signing_set(KEY, SECRET)
    out = ctypes.create_string_buffer(SIGNATURE_CHARS)
    for size in range(300):
        content = bytes((7 * index + size) & 0xFF for index in range(size))
        signing.signing_sign(content, ctypes.c_size_t(size), out)
        assert out.raw == base64.b64encode(hmac.digest(SECRET, content, "sha1")), size
