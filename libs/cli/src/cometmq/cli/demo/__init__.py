# SPDX-License-Identifier: Apache-2.0
"""`make demo`: the Python standard library, line by line, through a broker and back.

`run` is the sequence; `corpus` has the files, `children` the processes, `reports` the output of the
consumer processes, `rebuild` reassembles the files.
"""
