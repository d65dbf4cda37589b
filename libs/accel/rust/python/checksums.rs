// SPDX-License-Identifier: Apache-2.0
//! The function `file_crcs`, with the interface of `cometmq.store.log.checksums.FileCrcs`.

use std::os::fd::RawFd;

use pyo3::prelude::*;
use rustix::io::{pread, retry_on_intr};

use super::files::borrowed;

/// Size of one read. The bytes are still in the processor's cache when their CRC is computed.
const READ_BYTES: usize = 64 << 10;

/// Computes the CRC-32 of parts of an open file without the interpreter lock; each part has its
/// begin, its end, and the CRC of the bytes before it. Returns `None` if some bytes cannot be read.
#[pyfunction]
#[allow(clippy::needless_pass_by_value)] // the interface of pyo3
pub(crate) fn file_crcs(
    py: Python<'_>,
    fd: RawFd,
    parts: Vec<(u64, u64, u32)>,
) -> Option<Vec<u32>> {
    py.detach(|| {
        let mut buffer = vec![0; READ_BYTES];
        parts.iter().map(|&part| crc_of(fd, part, &mut buffer)).collect()
    })
}

fn crc_of(fd: RawFd, (mut begin, end, before): (u64, u64, u32), buffer: &mut [u8]) -> Option<u32> {
    let mut hasher = crc32fast::Hasher::new_with_initial(before);
    while begin < end {
        let wanted = buffer.len().min((end - begin) as usize);
        let into = &mut buffer[..wanted];
        let count = retry_on_intr(|| pread(borrowed(fd)?, &mut *into, begin)).ok()?;
        if count == 0 {
            return None;
        }
        hasher.update(&buffer[..count]);
        begin += count as u64;
    }
    Some(hasher.finalize())
}
