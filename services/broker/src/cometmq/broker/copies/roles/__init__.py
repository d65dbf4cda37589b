# SPDX-License-Identifier: Apache-2.0
"""The roles of a member of a broker group, the events that change them, and what each does."""
