# SPDX-License-Identifier: Apache-2.0
"""The console: pages for operators of a cluster."""
