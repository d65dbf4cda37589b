// SPDX-License-Identifier: Apache-2.0
//! The function `crcs`, with the interface of `cometmq.store.log.checksums.Crcs`.

use pyo3::exceptions::PyIndexError;
use pyo3::prelude::*;
use pyo3::types::PyBytes;

/// Computes the CRC-32 of parts of `data` without the interpreter lock; each part has its begin,
/// its end, and the CRC of the bytes before it.
#[pyfunction]
pub(crate) fn crcs(
    data: &Bound<'_, PyBytes>,
    parts: Vec<(usize, usize, u32)>,
) -> PyResult<Vec<u32>> {
    let bytes = data.as_bytes();
    data.py()
        .detach(|| {
            let crc = |(begin, end, before): (usize, usize, u32)| {
                let mut hasher = crc32fast::Hasher::new_with_initial(before);
                hasher.update(bytes.get(begin..end)?);
                Some(hasher.finalize())
            };
            parts.into_iter().map(crc).collect::<Option<Vec<u32>>>()
        })
        .ok_or_else(|| PyIndexError::new_err("a part lies outside the data"))
}
