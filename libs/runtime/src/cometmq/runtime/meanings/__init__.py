# SPDX-License-Identifier: Apache-2.0
"""What events and answers mean, and what to do about them."""
