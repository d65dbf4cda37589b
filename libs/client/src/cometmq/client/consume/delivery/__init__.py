# SPDX-License-Identifier: Apache-2.0
"""Delivery of messages to listeners, and the return of failed messages to the broker."""
