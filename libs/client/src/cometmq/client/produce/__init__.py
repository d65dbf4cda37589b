# SPDX-License-Identifier: Apache-2.0
"""Producers, transactional producers among them."""
