# SPDX-License-Identifier: Apache-2.0
"""HANDLERS: the broker's catalogue on one page. A code that is not here is answered 3."""
