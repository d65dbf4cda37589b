# SPDX-License-Identifier: Apache-2.0
"""The transaction check service: asks producers how open transactions ended."""
