# SPDX-License-Identifier: Apache-2.0
"""Commands that run one program in the foreground until a signal stops it."""
