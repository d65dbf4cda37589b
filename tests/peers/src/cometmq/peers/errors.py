# SPDX-License-Identifier: Apache-2.0
"""The error of peers. Programs in pods import it without the modules that start processes."""


class PeerError(Exception):
    """A peer could not be fetched, did not start, or missed a deadline."""
