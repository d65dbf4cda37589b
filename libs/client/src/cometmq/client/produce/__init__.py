# SPDX-License-Identifier: Apache-2.0
"""Producers, including transactional ones."""
