# SPDX-License-Identifier: Apache-2.0
"""A member without a broker, for tests of programs that control members."""
