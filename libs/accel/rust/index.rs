// SPDX-License-Identifier: Apache-2.0
//! Entries of the index file: the native version of the loop over keyed records in `cometmq.store`.

use std::cell::Cell;
use std::ops::Range;

use crate::commit::Keys;

const ENTRY_BYTES: usize = 20;

/// The slots of the growing index file, and which of their pages have changed.
pub struct Slots<'a> {
    /// Number of the newest entry in each slot; 0 for an empty slot.
    pub newest: &'a [Cell<i32>],
    /// One byte per page, nonzero if the page has changed.
    pub dirty: &'a [Cell<u8>],
    /// Number of slots per page.
    pub page_slots: usize,
}

impl Keys {
    /// Links entries, numbered from `number`, into their slots, and writes them to `out`, 20 bytes
    /// each. Their times are relative to `begin_ms`. Returns the number of slots that were empty,
    /// or `None` if the numbers or the pages do not suffice.
    #[must_use]
    pub fn link(
        &self,
        keys: Range<usize>,
        slots: &Slots,
        number: i32,
        begin_ms: i64,
        out: &mut [u8],
    ) -> Option<usize> {
        let slot_count = u32::try_from(slots.newest.len()).ok().filter(|&count| count > 0)?;
        let mut times =
            self.times[self.times.partition_point(|&(end, _)| end <= keys.start)..].iter();
        let (mut at, mut end, mut seconds) = (keys.start, keys.start, 0);
        let (hashes, offsets) = (self.hashes.get(keys.clone())?, self.offsets.get(keys)?);
        let mut used = 0;
        let mut number = number;
        let entries = out.chunks_exact_mut(ENTRY_BYTES);
        for ((&hash, offset), entry) in hashes.iter().zip(offsets).zip(entries) {
            if at == end {
                let (next, timestamp) = *times.next()?;
                (end, seconds) = (next, seconds_since(begin_ms, timestamp));
            }
            at += 1;
            let slot = (u32::try_from(hash).ok()? % slot_count) as usize;
            let previous = slots.newest[slot].replace(number);
            slots.dirty.get(slot / slots.page_slots)?.set(1);
            used += usize::from(previous == 0);
            entry[0..4].copy_from_slice(&hash.to_be_bytes());
            entry[4..12].copy_from_slice(&offset.to_be_bytes());
            entry[12..16].copy_from_slice(&seconds.to_be_bytes());
            entry[16..20].copy_from_slice(&previous.to_be_bytes());
            number = number.checked_add(1)?;
        }
        Some(used)
    }
}

fn seconds_since(begin_ms: i64, timestamp: i64) -> i32 {
    let elapsed_ms = if begin_ms > 0 { timestamp.saturating_sub(begin_ms).max(0) } else { 0 };
    i32::try_from(elapsed_ms / 1000).unwrap_or(i32::MAX)
}
