# SPDX-License-Identifier: Apache-2.0
"""How mqadmin writes and reads values: dates, numbers, messages and the state of consumers."""
