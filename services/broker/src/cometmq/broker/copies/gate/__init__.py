# SPDX-License-Identifier: Apache-2.0
"""When and where a member of a broker group serves a request."""
