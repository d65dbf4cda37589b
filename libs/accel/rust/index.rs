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
    /// each. Their times are relative to `begin_ms`.
    ///
    /// Returns the number of slots that were empty, or `None` if an entry number is too large or
    /// the pages do not cover a slot.
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

#[cfg(test)]
mod tests {
    use super::*;

    /// Links these keys, all of one second, as the entries from 5 on.
    fn link(hashes: &[i32], newest: &[Cell<i32>], dirty: &[Cell<u8>]) -> (Option<usize>, Vec<u8>) {
        let mut keys = Keys::default();
        keys.hashes.extend(hashes);
        keys.offsets.resize(hashes.len(), 700);
        keys.close(12_345);
        let mut out = vec![0; hashes.len() * ENTRY_BYTES];
        let slots = Slots { newest, dirty, page_slots: 2 };
        (keys.link(0..hashes.len(), &slots, 5, 10_000, &mut out), out)
    }

    #[test]
    fn entries_of_a_slot_form_a_chain() {
        let (newest, dirty) = (vec![Cell::new(0); 4], vec![Cell::new(0); 2]);
        let (used, out) = link(&[1, 5, 2], &newest, &dirty);
        assert_eq!(used, Some(2));
        assert_eq!(newest.iter().map(Cell::get).collect::<Vec<_>>(), [0, 6, 7, 0]);
        assert_eq!(dirty.iter().map(Cell::get).collect::<Vec<_>>(), [1, 1]);
        let second = &out[ENTRY_BYTES..2 * ENTRY_BYTES];
        assert_eq!(second[..4], 5i32.to_be_bytes());
        assert_eq!(second[4..12], 700i64.to_be_bytes());
        assert_eq!(second[12..16], 2i32.to_be_bytes()); // seconds since the file's begin
        assert_eq!(second[16..], 5i32.to_be_bytes()); // the entry before it in the slot
    }

    #[test]
    fn impossible_keys_and_slots_are_refused() {
        assert_eq!(link(&[1], &[], &[]).0, None);
        let (newest, dirty) = (vec![Cell::new(0); 4], vec![Cell::new(0); 2]);
        assert_eq!(link(&[-1], &newest, &dirty).0, None);
        assert_eq!(link(&[3], &newest, &dirty[..1]).0, None); // its page is missing
    }

    #[test]
    fn seconds_stay_in_range() {
        assert_eq!(seconds_since(0, 99_000), 0);
        assert_eq!(seconds_since(10_000, 9_000), 0);
        assert_eq!(seconds_since(1, i64::MAX), i32::MAX);
    }
}
