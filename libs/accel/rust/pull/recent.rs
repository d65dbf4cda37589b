// SPDX-License-Identifier: Apache-2.0
//! Recent reads of queues that several groups consume at about the same time: the native version of
//! `cometmq.store.queues.pulls`.
//!
//! The first read of an offset is only remembered; the records of the second one are kept. Only
//! reads that returned as many messages as they asked for are kept, because the results of other
//! reads change when the queue grows. The owner clears everything when records might change.

use std::collections::{HashMap, VecDeque};

use crate::pull::{Found, Limits, LogView, Queue};

const PLACES_MAX: usize = 1024;

/// Number of a queue, offset of a read, and number of messages asked for.
type Place = (usize, i64, i64);

struct Kept {
    records: Vec<u8>,
    found: Found,
}

/// The recent reads, the oldest of which are forgotten first.
pub struct Recent {
    places: HashMap<Place, Option<Kept>>,
    order: VecDeque<Place>,
    bytes: usize,
    bytes_max: usize,
}

impl Recent {
    /// Creates an empty cache, which keeps at most this many bytes of records.
    #[must_use]
    pub fn new(bytes_max: usize) -> Self {
        Self { places: HashMap::new(), order: VecDeque::new(), bytes: 0, bytes_max }
    }

    /// Returns the size of all records.
    #[must_use]
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// Forgets everything.
    pub fn clear(&mut self) {
        *self = Self::new(self.bytes_max);
    }

    /// Returns the kept result of a read, and its records, if readers may still see them.
    #[must_use]
    pub fn find(
        &self,
        queue: Queue,
        from: i64,
        limits: &Limits,
        log: &LogView,
    ) -> Option<(Found, &[u8])> {
        let place = (queue.number, from, limits.count_max);
        let Kept { records, found } = self.places.get(&place)?.as_ref()?;
        let oldest = log.first.max(log.end.saturating_sub(limits.memory_bytes));
        let is_there = from >= queue.min_offset && found.next_offset <= queue.max_offset;
        let is_visible = is_there && found.offset >= oldest;
        is_visible.then_some((*found, records))
    }

    /// Remembers a read; keeps its records if it was remembered before.
    pub fn note(&mut self, queue: Queue, from: i64, limits: &Limits, found: Found, records: &[u8]) {
        if found.count as i64 != limits.count_max || records.len() > self.bytes_max / 8 {
            return;
        }
        let place = (queue.number, from, limits.count_max);
        if let Some(kept) = self.places.get_mut(&place) {
            if let Some(old) = kept.replace(Kept { records: records.to_vec(), found }) {
                self.bytes -= old.records.len();
            }
            self.bytes += records.len();
        } else {
            self.places.insert(place, None);
            self.order.push_back(place);
        }
        while self.order.len() > PLACES_MAX || self.bytes > self.bytes_max {
            let Some(oldest) = self.order.pop_front() else {
                return;
            };
            if let Some(Some(kept)) = self.places.remove(&oldest) {
                self.bytes -= kept.records.len();
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIMITS: Limits = Limits { count_max: 2, bytes_max: 100, memory_bytes: 500 };

    fn queue(number: usize) -> Queue {
        Queue { number, min_offset: 0, max_offset: 99 }
    }

    fn found(offset: i64) -> Found {
        Found { count: 2, bytes: 4, offset, next_offset: offset / 10 + 2 }
    }

    fn log(first: i64, end: i64) -> LogView {
        LogView { first, end, file_size: 1000, damage: vec![] }
    }

    #[test]
    fn the_records_of_a_repeated_read_are_kept_while_readers_may_see_them() {
        let mut recent = Recent::new(64);
        for round in 0..3 {
            let known = recent.find(queue(1), 30, &LIMITS, &log(0, 600));
            assert_eq!(known.is_some(), round == 2);
            recent.note(queue(1), 30, &LIMITS, found(300), b"once");
        }
        let known = recent.find(queue(1), 30, &LIMITS, &log(300, 800));
        assert_eq!(known, Some((found(300), &b"once"[..])));
        assert_eq!(recent.find(queue(1), 30, &LIMITS, &log(301, 800)), None);
        assert_eq!(recent.find(queue(1), 30, &LIMITS, &log(0, 801)), None);
        assert_eq!(recent.find(queue(2), 30, &LIMITS, &log(0, 600)), None);
        assert_eq!(recent.find(queue(1), 31, &LIMITS, &log(0, 600)), None);
        let other = Limits { count_max: 1, ..LIMITS };
        assert_eq!(recent.find(queue(1), 30, &other, &log(0, 600)), None);
        let trimmed = Queue { min_offset: 31, ..queue(1) };
        assert_eq!(recent.find(trimmed, 30, &LIMITS, &log(0, 600)), None);
        recent.clear();
        assert_eq!(recent.find(queue(1), 30, &LIMITS, &log(0, 600)), None);
        assert_eq!(recent.bytes(), 0);
    }

    #[test]
    fn reads_of_fewer_messages_or_too_many_bytes_are_not_kept() {
        let mut recent = Recent::new(64);
        for _ in 0..3 {
            recent.note(queue(1), 30, &LIMITS, Found { count: 1, ..found(300) }, b"once");
            recent.note(queue(1), 40, &LIMITS, found(400), b"too long");
            recent.note(queue(1), 50, &LIMITS, found(500), b"too long!");
        }
        assert_eq!(recent.find(queue(1), 30, &LIMITS, &log(0, 600)), None);
        assert!(recent.find(queue(1), 40, &LIMITS, &log(0, 600)).is_some());
        assert_eq!(recent.find(queue(1), 50, &LIMITS, &log(0, 600)), None);
    }

    #[test]
    fn the_oldest_reads_are_forgotten_first() {
        let mut recent = Recent::new(64);
        for from in 0..20 {
            recent.note(queue(1), from, &LIMITS, found(300), b"8 bytes.");
            recent.note(queue(1), from, &LIMITS, found(300), b"8 bytes.");
            assert!(recent.bytes() <= 64);
        }
        let kept = |from| recent.find(queue(1), from, &LIMITS, &log(0, 600)).is_some();
        assert_eq!(
            (0..20).filter(|&from| kept(from)).collect::<Vec<_>>(),
            (12..20).collect::<Vec<_>>()
        );
        for from in 0..PLACES_MAX as i64 {
            recent.note(queue(2), from, &LIMITS, found(300), b"8 bytes.");
        }
        assert_eq!((recent.bytes(), recent.order.len()), (0, PLACES_MAX));
        assert_eq!(recent.places.len(), PLACES_MAX);
    }
}
