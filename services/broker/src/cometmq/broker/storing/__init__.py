# SPDX-License-Identifier: Apache-2.0
"""The store on the loop: commits, reads on threads, syncs, figures of the disk."""
