# SPDX-License-Identifier: Apache-2.0
"""`make demo`: the Python standard library, line by line, through a broker and back.

`run` tells the story; `corpus` knows the files, `children` the processes that take part,
`reports` what the consumer processes tell us, `rebuild` puts the files together again.
"""
