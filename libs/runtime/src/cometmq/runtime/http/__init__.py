# SPDX-License-Identifier: Apache-2.0
"""The HTTP server of admin ports and console, and the pages of admin ports."""
