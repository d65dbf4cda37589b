# SPDX-License-Identifier: Apache-2.0
"""Pages, actions, their rendering and the HTTP server, without any subject."""
