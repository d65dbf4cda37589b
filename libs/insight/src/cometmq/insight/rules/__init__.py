# SPDX-License-Identifier: Apache-2.0
"""The rules of findings: pure functions of a snapshot and the history of earlier ones."""
