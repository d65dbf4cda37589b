# SPDX-License-Identifier: Apache-2.0
"""Helpers of our own tests, a room for each member; no wheel or image contains them."""
