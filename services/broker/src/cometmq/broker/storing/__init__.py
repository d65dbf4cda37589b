# SPDX-License-Identifier: Apache-2.0
"""The store as the loop uses it: puts and commits, reads and syncs on threads, figures of the
disk.
"""
