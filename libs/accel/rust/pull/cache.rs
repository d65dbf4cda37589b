// SPDX-License-Identifier: Apache-2.0
//! Recently read blocks of the log or of a consume queue.
//!
//! Cached bytes must not change; the owner clears the cache when they might. A block may grow at
//! its end, as the log and the queues do.

use std::collections::HashMap;
use std::sync::Arc;

use crate::pull::eviction::{Key, Use, choose};
use crate::scan::be32;

struct Block {
    data: Arc<Vec<u8>>,
    used: u64,
}

/// A cache of blocks; when it is full, `eviction` chooses the blocks to drop.
pub struct Cache {
    blocks: HashMap<Key, Block>,
    bytes: usize,
    bytes_max: usize,
    /// The difference between the numbers of adjacent blocks.
    step: i64,
    tick: u64,
    /// The blocks to drop next, the last one first, unless they are used again.
    doomed: Vec<Use>,
    /// The memory of a dropped block, with its old bytes, for the next one.
    spare: Vec<u8>,
}

impl Cache {
    /// Creates an empty cache.
    #[must_use]
    pub fn new(bytes_max: usize, step: i64) -> Self {
        let (blocks, doomed, spare) = (HashMap::new(), vec![], vec![]);
        Self { blocks, bytes: 0, bytes_max, step, tick: 0, doomed, spare }
    }

    /// Returns the total size of all blocks.
    #[must_use]
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// Drops all blocks.
    pub fn clear(&mut self) {
        self.blocks = HashMap::new();
        self.doomed = vec![];
        self.spare = vec![];
        self.bytes = 0;
    }

    /// Returns a block with at least this many bytes, or `None` if they cannot be read.
    ///
    /// `read` gets a position and a buffer; from the position on, it replaces the buffer's content
    /// by the bytes of the block, and returns whether it could.
    pub fn get(
        &mut self,
        key: Key,
        bytes: usize,
        read: impl FnOnce(usize, &mut Vec<u8>) -> bool,
    ) -> Option<Arc<Vec<u8>>> {
        self.tick += 1;
        let used = self.tick;
        if let Some(block) = self.blocks.get_mut(&key) {
            block.used = used;
            let known = block.data.len();
            if known < bytes {
                let data = Arc::make_mut(&mut block.data);
                if !read(known, data) || data.len() < bytes {
                    data.truncate(known);
                    return None;
                }
                self.bytes += data.len() - known;
            }
        } else {
            let mut data = std::mem::take(&mut self.spare);
            if !read(0, &mut data) || data.len() < bytes {
                self.spare = data;
                return None;
            }
            self.bytes += data.len();
            self.blocks.insert(key, Block { data: Arc::new(data), used });
        }
        while self.bytes > self.bytes_max && self.drop_one() {}
        self.blocks.get(&key).map(|block| Arc::clone(&block.data))
    }

    /// Drops a block; returns false if there is only one.
    fn drop_one(&mut self) -> bool {
        loop {
            let Some((key, used)) = self.doomed.pop() else {
                let uses = self.blocks.iter().map(|(&key, block)| (key, block.used)).collect();
                self.doomed = choose(uses, self.step);
                if self.doomed.is_empty() {
                    return false;
                }
                continue;
            };
            if self.blocks.get(&key).is_none_or(|block| block.used != used) {
                continue;
            }
            if let Some(block) = self.blocks.remove(&key) {
                self.bytes -= block.data.len();
                self.spare = Arc::try_unwrap(block.data).unwrap_or_default();
            }
            return true;
        }
    }
}

/// Size of the parts of the log that have checksums.
pub const PART_BYTES: usize = 64 << 10;
/// Size of a checksum's entry: the length of the part that it covers, the CRC-32 of these bytes, and
/// the entry's own.
pub const CHECKSUM_BYTES: usize = 12;

/// Begin and end of a part of a block, and the CRC-32 of its bytes.
pub type Part = (usize, usize, u32);

/// Reads the checksums of consecutive parts of a log file, as `cometmq.store.log.checksums` does.
/// Entries that are missing or damaged are left out. `offset` is where the first part begins in the
/// log.
#[must_use]
pub fn parts(entries: &[u8], offset: i64) -> Vec<Part> {
    let mut found = vec![];
    for (number, entry) in entries.chunks_exact(CHECKSUM_BYTES).enumerate() {
        let begin = number * PART_BYTES;
        let mut hasher = crc32fast::Hasher::new_with_initial(PART_BYTES as u32);
        hasher.update(&(offset + begin as i64).to_be_bytes());
        hasher.update(&entry[..8]);
        let length = be32(entry, 0) as usize;
        if length > 0 && be32(entry, 8) == hasher.finalize() {
            found.push((begin, begin + length, be32(entry, 4)));
        }
    }
    found
}

/// Returns whether parts cover all bytes of a block of this size, and nothing more.
#[must_use]
pub fn cover(parts: &[Part], bytes: usize) -> bool {
    let end = parts.iter().try_fold(0, |end, part| (part.0 == end).then_some(part.1));
    end == Some(bytes)
}

/// Returns whether the bytes of a block match the checksums of its parts. Parts before `known` are
/// skipped, because they were compared when they were read.
#[must_use]
pub fn fits(block: &[u8], known: usize, parts: &[Part]) -> bool {
    parts.iter().all(|&(begin, end, crc)| {
        end <= known || block.get(begin..end).is_some_and(|part| crc32fast::hash(part) == crc)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fill(from: usize, data: &mut Vec<u8>, byte: usize, count: usize) -> bool {
        data.resize(from + count, 0);
        data[from..].fill(byte as u8);
        true
    }

    #[test]
    fn blocks_grow_and_the_one_without_a_reader_behind_it_goes() {
        let mut cache = Cache::new(10, 1);
        let length =
            |cache: &mut Cache, number| cache.get((0, number), 0, |_, _| false).unwrap().len();
        let begun = cache.get((0, 1), 2, |from, data| fill(from, data, from, 2));
        assert_eq!(*begun.unwrap(), [0, 0]);
        let grown = cache.get((0, 1), 4, |from, data| fill(from, data, from, 3));
        assert_eq!(*grown.unwrap(), [0, 0, 2, 2, 2]);
        let other = cache.get((0, 2), 5, |from, data| fill(from, data, 7, 5));
        assert_eq!(*other.unwrap(), [7; 5]);
        assert_eq!(length(&mut cache, 1), 5);
        // A reader is at 1, so 2 is read next.
        assert_eq!(*cache.get((0, 3), 1, |from, data| fill(from, data, 8, 1)).unwrap(), [8]);
        assert_eq!(length(&mut cache, 2), 5);
        assert_eq!(cache.get((0, 1), 1, |_, _| false), None);
        assert_eq!(cache.bytes(), 6);
    }

    #[test]
    fn a_new_block_has_nothing_of_the_dropped_one_whose_memory_it_gets() {
        let mut cache = Cache::new(4, 1);
        cache.get((0, 1), 4, |from, data| fill(from, data, 1, 4));
        cache.get((0, 2), 1, |from, data| fill(from, data, 2, 1));
        assert_eq!(cache.bytes(), 1);
        assert_eq!(*cache.get((0, 3), 2, |from, data| fill(from, data, 3, 2)).unwrap(), [3, 3]);
        assert_eq!(*cache.get((0, 2), 1, |_, _| false).unwrap(), [2]);
    }

    const PROOF: [u8; 4] = 0xe6be_6f30_u32.to_be_bytes();

    #[test]
    fn parts_are_compared_unless_they_are_known() {
        let crc = crc32fast::hash(b"cd");
        assert!(fits(b"abcd", 0, &[(2, 4, crc)]));
        assert!(!fits(b"abce", 0, &[(2, 4, crc)]));
        assert!(!fits(b"abce", 3, &[(2, 4, crc)]));
        assert!(fits(b"abce", 4, &[(2, 4, crc)]));
        assert!(!fits(b"abcd", 0, &[(2, 5, crc)]));
    }

    #[test]
    fn parts_cover_a_block_without_gaps_and_up_to_its_end() {
        assert!(cover(&[(0, 2, 7), (2, 4, 7)], 4));
        assert!(!cover(&[(0, 2, 7), (2, 4, 7)], 3));
        assert!(!cover(&[(0, 2, 7), (2, 4, 7)], 5));
        assert!(!cover(&[(0, 2, 7), (3, 4, 7)], 4));
        assert!(!cover(&[(2, 4, 7)], 4));
        assert!(!cover(&[], 4));
    }

    #[test]
    fn entries_that_are_not_their_own_are_left_out() {
        // written by Python: length 5, CRC 7, of the block at 65,536
        let entry = [0, 0, 0, 5, 0, 0, 0, 7, PROOF[0], PROOF[1], PROOF[2], PROOF[3]];
        let missing = [0; CHECKSUM_BYTES];
        assert_eq!(parts(&entry, 65_536), [(0, 5, 7)]);
        assert_eq!(parts(&entry, 0), []);
        let both = [missing, entry].concat();
        assert_eq!(parts(&both, 0), [(PART_BYTES, PART_BYTES + 5, 7)]);
        assert_eq!(parts(&both[..20], 0), []);
        for at in 0..CHECKSUM_BYTES {
            let mut other = entry;
            other[at] ^= 1;
            assert_eq!(parts(&other, 65_536), []);
        }
    }

    #[test]
    fn too_few_bytes_are_none_and_change_nothing() {
        let mut cache = Cache::new(10, 1);
        assert_eq!(cache.get((0, 1), 2, |from, data| fill(from, data, 1, 1)), None);
        assert_eq!(cache.get((0, 1), 2, |_, _| false), None);
        assert_eq!(cache.bytes(), 0);
        cache.get((0, 1), 1, |from, data| fill(from, data, 1, 1));
        assert_eq!(cache.get((0, 1), 3, |from, data| fill(from, data, 2, 1)), None);
        assert_eq!(*cache.get((0, 1), 1, |_, _| false).unwrap(), [1]);
        assert_eq!(cache.bytes(), 1);
    }
}
