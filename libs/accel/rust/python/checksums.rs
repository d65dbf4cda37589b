// SPDX-License-Identifier: Apache-2.0
//! The function `block_sums`, with the interface of `cometmq.store.log.checksums.BlockSums`.

use std::os::fd::RawFd;

use pyo3::prelude::*;
use pyo3::types::PyBytes;
use rustix::io::{pread, retry_on_intr};

use super::files::borrowed;
use crate::pull::cache::PART_BYTES;

/// Size of the parts of a block whose bytes can be compared apart.
const PAGE_BYTES: usize = 4 << 10;
/// Size of the checksums of a block's pages, before their own.
const PAGES_BYTES: usize = (PART_BYTES / PAGE_BYTES - 1) * 4;

/// Begin and end of a part of a block, and the checksums of the block before it: its CRC, and those
/// of its pages.
type Part = (u64, u64, u32, Option<Vec<u8>>);

#[pyfunction]
#[allow(clippy::needless_pass_by_value)] // the interface of pyo3
pub(crate) fn block_sums(
    py: Python<'_>,
    fd: RawFd,
    start: i64,
    parts: Vec<Part>,
) -> Option<Bound<'_, PyBytes>> {
    let found = py.detach(|| {
        let (mut buffer, mut sums) = (vec![0; PART_BYTES], vec![]);
        parts.iter().try_for_each(|part| add(fd, start, part, &mut buffer, &mut sums))?;
        Some(sums)
    });
    found.map(|sums| PyBytes::new(py, &sums))
}

/// Adds the entry of a part's block and the checksums of its pages.
fn add(
    fd: RawFd,
    start: i64,
    &(begin, end, before, ref known): &Part,
    buffer: &mut [u8],
    sums: &mut Vec<u8>,
) -> Option<()> {
    let in_block = begin as usize % PART_BYTES;
    let block = begin - in_block as u64;
    let bytes = buffer.get_mut(..(end.checked_sub(begin)?) as usize)?;
    read(fd, begin, bytes)?;
    let mut pages = known.clone().unwrap_or_default();
    pages.resize(in_block / PAGE_BYTES * 4, 0);
    let mut hasher = crc32fast::Hasher::new_with_initial(before);
    let (head, rest) = bytes.split_at(bytes.len().min(PAGE_BYTES - in_block % PAGE_BYTES));
    let mut at = in_block;
    for page in std::iter::once(head).chain(rest.chunks(PAGE_BYTES)) {
        hasher.update(page);
        at += page.len();
        if at.is_multiple_of(PAGE_BYTES) {
            pages.extend(hasher.clone().finalize().to_be_bytes());
        }
    }
    let length = (end - block) as u32;
    let (length, crc) = (length.to_be_bytes(), hasher.finalize().to_be_bytes());
    let offset = (start + block as i64).to_be_bytes();
    let proof = crc_of(PART_BYTES as u32, &[&offset, &length, &crc]);
    for field in [length, crc, proof.to_be_bytes()] {
        sums.extend(field);
    }
    pages.resize(PAGES_BYTES, 0);
    if known.is_some() {
        sums.extend(&pages);
        sums.extend(crc_of(proof, &[&pages]).to_be_bytes());
    } else {
        sums.extend([0; PAGES_BYTES + 4]);
    }
    Some(())
}

fn read(fd: RawFd, begin: u64, mut into: &mut [u8]) -> Option<()> {
    let mut at = begin;
    while !into.is_empty() {
        let count = retry_on_intr(|| pread(borrowed(fd)?, &mut *into, at)).ok()?;
        if count == 0 {
            return None;
        }
        into = &mut into[count..];
        at += count as u64;
    }
    Some(())
}

fn crc_of(before: u32, parts: &[&[u8]]) -> u32 {
    let mut hasher = crc32fast::Hasher::new_with_initial(before);
    for part in parts {
        hasher.update(part);
    }
    hasher.finalize()
}
