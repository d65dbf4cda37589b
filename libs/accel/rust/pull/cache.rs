// SPDX-License-Identifier: Apache-2.0
//! Recently read blocks of the log or of a consume queue.
//!
//! Cached bytes must not change; the owner clears the cache when they might. A block may grow at
//! its end, as the log and the queues do.

use std::collections::HashMap;
use std::sync::Arc;

/// The owner of a block, and the number of the block within that owner.
pub type Key = (usize, i64);

struct Block {
    data: Arc<Vec<u8>>,
    used: u64,
}

/// A cache of blocks, which drops the least recently used block first.
pub struct Cache {
    blocks: HashMap<Key, Block>,
    bytes: usize,
    bytes_max: usize,
    tick: u64,
}

impl Cache {
    /// Creates an empty cache.
    #[must_use]
    pub fn new(bytes_max: usize) -> Self {
        Self { blocks: HashMap::new(), bytes: 0, bytes_max, tick: 0 }
    }

    /// Returns the total size of all blocks.
    #[must_use]
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// Drops all blocks.
    pub fn clear(&mut self) {
        self.blocks = HashMap::new();
        self.bytes = 0;
    }

    /// Returns a block with at least this many bytes, or `None` if they cannot be read. `read`
    /// returns the bytes of the block from a given position on.
    pub fn get(
        &mut self,
        key: Key,
        bytes: usize,
        read: impl FnOnce(usize) -> Option<Vec<u8>>,
    ) -> Option<Arc<Vec<u8>>> {
        self.tick += 1;
        let mut known = 0;
        if let Some(block) = self.blocks.get_mut(&key) {
            block.used = self.tick;
            known = block.data.len();
            if known >= bytes {
                return Some(Arc::clone(&block.data));
            }
        }
        let more = read(known)?;
        if known + more.len() < bytes {
            return None;
        }
        self.bytes += more.len();
        let used = self.tick;
        let block = self.blocks.entry(key).or_insert_with(|| Block { data: Arc::default(), used });
        let data = Arc::make_mut(&mut block.data);
        if data.is_empty() {
            *data = more;
        } else {
            data.extend_from_slice(&more);
        }
        let data = Arc::clone(&block.data);
        while self.bytes > self.bytes_max && self.blocks.len() > 1 {
            self.drop_oldest();
        }
        Some(data)
    }

    fn drop_oldest(&mut self) {
        let oldest = self.blocks.iter().min_by_key(|(_, block)| block.used).map(|(&key, _)| key);
        if let Some(block) = oldest.and_then(|key| self.blocks.remove(&key)) {
            self.bytes -= block.data.len();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blocks_grow_and_the_least_recently_used_one_goes() {
        let mut cache = Cache::new(10);
        let length = |cache: &mut Cache, number| cache.get((0, number), 0, |_| None).unwrap().len();
        assert_eq!(*cache.get((0, 1), 2, |from| Some(vec![from as u8; 2])).unwrap(), [0, 0]);
        let grown = cache.get((0, 1), 4, |from| Some(vec![from as u8; 3]));
        assert_eq!(*grown.unwrap(), [0, 0, 2, 2, 2]);
        assert_eq!(*cache.get((0, 2), 5, |_| Some(vec![7; 5])).unwrap(), [7; 5]);
        assert_eq!(length(&mut cache, 1), 5);
        assert_eq!(*cache.get((0, 3), 1, |_| Some(vec![8])).unwrap(), [8]);
        assert_eq!(length(&mut cache, 1), 5);
        assert_eq!(cache.get((0, 2), 1, |_| None), None);
        assert_eq!(cache.bytes(), 6);
    }

    #[test]
    fn too_few_bytes_are_none() {
        let mut cache = Cache::new(10);
        assert_eq!(cache.get((0, 1), 2, |_| Some(vec![1])), None);
        assert_eq!(cache.get((0, 1), 2, |_| None), None);
        assert_eq!(cache.bytes(), 0);
    }
}
