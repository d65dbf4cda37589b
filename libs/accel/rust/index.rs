// SPDX-License-Identifier: Apache-2.0
//! Entries of the index file: the twin of `cometmq.store`'s loop over keyed records.

use std::cell::Cell;
use std::ops::Range;

use crate::commit::Keys;

const ENTRY_BYTES: usize = 20;

/// The slots of the growing index file, and which of their pages have changed.
pub struct Slots<'a> {
    /// Number of the newest entry of each slot, 0 for none.
    pub newest: &'a [Cell<i32>],
    /// One byte for each page.
    pub dirty: &'a [Cell<u8>],
    /// Slots of a page.
    pub page_slots: usize,
}

impl Keys {
    /// Links entries, numbered from `number` on, into their slots. `out` gets them, 20 bytes each.
    /// Returns how many slots were empty; `None` if the numbers or the pages do not suffice.
    #[must_use]
    pub fn link(
        &self,
        keys: Range<usize>,
        slots: &Slots,
        number: i32,
        seconds: i32,
        out: &mut [u8],
    ) -> Option<usize> {
        let slot_count = u32::try_from(slots.newest.len()).ok().filter(|&count| count > 0)?;
        let (hashes, offsets) = (self.hashes.get(keys.clone())?, self.offsets.get(keys)?);
        let mut used = 0;
        let mut number = number;
        let entries = out.chunks_exact_mut(ENTRY_BYTES);
        for ((&hash, offset), entry) in hashes.iter().zip(offsets).zip(entries) {
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
