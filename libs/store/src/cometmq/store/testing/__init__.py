# SPDX-License-Identifier: Apache-2.0
"""A crashable disk, a failing disk and message builders, for tests of the store and its users."""
