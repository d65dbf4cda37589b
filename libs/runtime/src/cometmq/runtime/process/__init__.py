# SPDX-License-Identifier: Apache-2.0
"""Facts and settings of the process and its machine: memory, files, ports, priority, loop lag."""
