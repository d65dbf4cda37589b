# SPDX-License-Identifier: Apache-2.0
"""The framework of the console: pages, actions, rendering and the HTTP server."""
