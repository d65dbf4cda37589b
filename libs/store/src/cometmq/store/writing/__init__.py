# SPDX-License-Identifier: Apache-2.0
"""Puts until they are answered: placement, encoding, dispatch, refusals."""
