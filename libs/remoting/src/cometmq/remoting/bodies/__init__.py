# SPDX-License-Identifier: Apache-2.0
"""Bodies of requests and replies as typed values."""
