# SPDX-License-Identifier: Apache-2.0
"""Passes mutated input to the decoders, and sends hostile frames to live servers."""
