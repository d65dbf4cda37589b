# SPDX-License-Identifier: Apache-2.0
"""What a process knows of itself and of its machine."""
