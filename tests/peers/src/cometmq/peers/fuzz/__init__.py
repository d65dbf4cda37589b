# SPDX-License-Identifier: Apache-2.0
"""Mutated input for the decoders, and hostile frames for live servers."""
