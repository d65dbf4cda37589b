# SPDX-License-Identifier: Apache-2.0
"""Puts from arrival to answer: placement, encoding, dispatch, refusals."""
