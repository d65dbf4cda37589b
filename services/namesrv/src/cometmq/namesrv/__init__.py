# SPDX-License-Identifier: Apache-2.0
"""The name server: registers brokers and answers clients' requests for topic routes."""
