# SPDX-License-Identifier: Apache-2.0
"""Typed bodies of requests and replies."""
