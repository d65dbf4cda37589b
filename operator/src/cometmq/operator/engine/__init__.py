# SPDX-License-Identifier: Apache-2.0
"""What all kinds of objects have in common: tasks, passes, finalizers, conditions, Events."""
