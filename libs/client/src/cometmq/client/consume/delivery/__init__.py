# SPDX-License-Identifier: Apache-2.0
"""Handing messages to listeners, and sending failed messages back to the broker."""
