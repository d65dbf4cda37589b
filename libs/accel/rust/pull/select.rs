// SPDX-License-Identifier: Apache-2.0
//! Selects the messages that answer a pull: the native version of
//! `cometmq.store.queues.queue_reader` and `matching_reader`, for pulls that find something among
//! recent messages.

use std::sync::Arc;

use crate::host::{BORN_HOST_V6, HOST_V4_BYTES, HOST_V6_BYTES, STORE_HOST_V6};
use crate::pull::cache::Cache;
use crate::pull::eviction::Key;
use crate::pull::prefetch::prefetch;
use crate::pull::recent::Recent;
use crate::pull::sql::{Program, Unsure};
use crate::pull::{Found, Limits, LogView, Queue};
use crate::scan::{be32, be64};

/// Size of a consume queue entry.
pub const ENTRY_BYTES: usize = 20;
/// A filtered pull examines up to this number of entries, even if fewer messages are wanted.
const SCAN_COUNT_MIN: i64 = 800;
/// Steps of a filter for an entry without its record.
pub const ENTRY_STEPS: i64 = 256;
/// Bytes of a record that a filter copies in one step.
const COPIED_BYTES: usize = 16;
/// Number of records that are prefetched: the records of a queue are scattered, and waiting for
/// each of them took half of the time.
const AHEAD_COUNT: i64 = 8;
const LOG_BLOCK_BYTES: i64 = 128 << 10;
const ENTRY_BLOCK_COUNT: i64 = 512;
/// Smaller tag codes are the addresses of extended entries.
const EXTENDED_TAG_MAX: i64 = -2_147_483_649;
const RECORD_BYTES_MIN: usize = 91;
/// Size of the fields before the body of a record, if both hosts have IPv4 addresses.
const FIXED_BYTES: usize = 88;
/// Bits of sysFlag for hosts with IPv6 addresses.
const HOSTS_V6: u8 = (BORN_HOST_V6 | STORE_HOST_V6) as u8;
/// Number of bytes that an IPv6 address adds to a record.
const V6_BYTES_MORE: usize = HOST_V6_BYTES - HOST_V4_BYTES;

/// Reads blocks that are not cached. Each function fills a buffer, whose old content is arbitrary,
/// and returns false if the read would block or fails.
pub trait Source {
    /// Reads bytes of the log, all of them from one file: those of a block that begins at `start`,
    /// from position `known` on. Returns false also if they do not match their checksums.
    fn log(&mut self, start: i64, known: usize, block: &mut [u8]) -> bool;
    /// Reads entries of a queue, starting at a queue offset.
    fn entries(&mut self, queue: usize, queue_offset: i64, into: &mut [u8]) -> bool;
}

/// The messages that a reader wants.
#[derive(Debug)]
pub enum Filter {
    /// All messages.
    All,
    /// Messages with one of these tag codes, which are sorted.
    Tags(Vec<i64>),
    /// Messages whose properties match.
    Sql(Program),
}

/// The caches of blocks of the log and of all queues, and of recent reads.
pub struct Caches {
    log: Cache,
    entries: Cache,
    /// The recent reads.
    pub recent: Recent,
}

impl Caches {
    /// Creates empty caches; an eighth of the memory is for entries, a sixteenth for recent reads.
    #[must_use]
    pub fn new(bytes_max: usize) -> Self {
        let (entries, recent) = (bytes_max / 8, bytes_max / 16);
        Self {
            log: Cache::new(bytes_max - entries - recent, LOG_BLOCK_BYTES),
            entries: Cache::new(entries, 1),
            recent: Recent::new(recent),
        }
    }

    /// Drops all blocks.
    pub fn clear(&mut self) {
        self.log.clear();
        self.entries.clear();
        self.recent.clear();
    }

    /// Returns the total size of all cached bytes.
    #[must_use]
    pub fn bytes(&self) -> usize {
        self.log.bytes() + self.entries.bytes() + self.recent.bytes()
    }
}

/// One pull in progress.
pub struct Selection<'a, S> {
    /// The caches to read from.
    pub caches: &'a mut Caches,
    /// Reads blocks that are not cached.
    pub source: &'a mut S,
    /// The log.
    pub log: &'a LogView,
    /// The queue.
    pub queue: Queue,
    /// Id of the queue, and its topic.
    pub name: (i32, &'a [u8]),
    /// Limits of the answer.
    pub limits: Limits,
    /// The messages that the reader wants.
    pub filter: &'a Filter,
    /// The blocks used last; most records and entries are adjacent.
    pub last: LastBlocks,
}

/// The blocks that a pull has used last.
#[derive(Default)]
pub struct LastBlocks {
    log: Option<(Key, Arc<Vec<u8>>)>,
    entries: Option<(Key, Arc<Vec<u8>>)>,
}

impl<S: Source> Selection<'_, S> {
    /// Appends records to `body`, starting at a queue offset. Returns `None`, possibly after
    /// appending, if Python must answer because nothing was found or not everything is plain.
    ///
    /// `budget` is the number of steps that filters may still take (`sql.rs`). A pull that exceeds
    /// it ends with the messages found so far; if there are none, Python must answer.
    pub fn run(&mut self, from: i64, body: &mut Vec<u8>, budget: &mut i64) -> Option<Found> {
        let Queue { min_offset, max_offset, .. } = self.queue;
        if from < min_offset || from >= max_offset {
            return None;
        }
        let is_filtered = !matches!(self.filter, Filter::All);
        let most = self.limits.count_max.max(if is_filtered { SCAN_COUNT_MIN } else { 0 });
        let end = from.saturating_add(most).min(max_offset);
        let start = body.len();
        let (mut count, mut at, mut last, mut first) = (0usize, from, -1i64, -1i64);
        let mut ahead = from;
        while at < end {
            let (offset, size, tag_code) = self.entry(at)?;
            if is_filtered && *budget < ENTRY_STEPS {
                if count > 0 {
                    break;
                }
                return None;
            }
            if offset <= last || !self.is_plain(offset, size) {
                return None;
            }
            let is_full = count as i64 >= self.limits.count_max
                || body.len() - start + size > self.limits.bytes_max;
            if count > 0 && is_full {
                break;
            }
            last = offset;
            at += 1;
            *budget -= if is_filtered { ENTRY_STEPS } else { 0 };
            if let Filter::Tags(codes) = self.filter {
                if tag_code > EXTENDED_TAG_MAX && codes.binary_search(&tag_code).is_err() {
                    continue;
                }
            }
            let begin = body.len();
            self.record(at - 1, offset, size, body)?;
            ahead = self.prefetch(ahead.max(at), end.min(at + AHEAD_COUNT));
            if let Filter::Sql(program) = self.filter {
                let mut steps = size / COPIED_BYTES;
                let verdict = program.matches(&body[begin..], &mut steps);
                *budget -= steps as i64;
                match verdict {
                    Ok(true) => {}
                    Ok(false) => {
                        body.truncate(begin);
                        continue;
                    }
                    Err(Unsure) => return None,
                }
            }
            if count == 0 {
                first = offset;
            }
            count += 1;
        }
        let bytes = body.len() - start;
        (count > 0).then_some(Found { count, bytes, offset: first, next_offset: at })
    }

    fn is_plain(&self, offset: i64, size: usize) -> bool {
        let (log, end) = (self.log, offset.saturating_add(size as i64));
        size >= RECORD_BYTES_MIN
            && offset >= log.first
            && end <= log.end
            && offset >= log.end.saturating_sub(self.limits.memory_bytes)
            && !log.damage.iter().any(|&(start, stop)| offset < stop && start < end)
    }

    fn entry(&mut self, at: i64) -> Option<(i64, usize, i64)> {
        let key = (self.queue.number, at / ENTRY_BLOCK_COUNT);
        let begin = (at % ENTRY_BLOCK_COUNT) as usize * ENTRY_BYTES;
        let end = begin + ENTRY_BYTES;
        if !is_in(self.last.entries.as_ref(), key, end) {
            self.last.entries = None;
            self.last.entries = Some((key, self.read_entries(key, end)?));
        }
        let (_, block) = self.last.entries.as_ref()?;
        let entry = block.get(begin..end)?;
        let size = i32::from_be_bytes(entry[8..12].try_into().ok()?);
        Some((be64(entry, 0)?, usize::try_from(size).ok()?, be64(entry, 12)?))
    }

    /// Prefetches records of a range that are in the blocks used last; returns the first one that is
    /// not, or the end of the range.
    fn prefetch(&self, from: i64, end: i64) -> i64 {
        let (Some((key, entries)), Some((place, block))) = (&self.last.entries, &self.last.log)
        else {
            return from;
        };
        for at in from..end {
            let begin = (at % ENTRY_BLOCK_COUNT) as usize * ENTRY_BYTES;
            let entry = entries.get(begin..begin + 12).filter(|_| at / ENTRY_BLOCK_COUNT == key.1);
            let record = entry.and_then(|entry| {
                let begin = usize::try_from(be64(entry, 0)?.checked_sub(place.1)?).ok()?;
                block.get(begin..begin.checked_add(be32(entry, 8) as usize)?)
            });
            let Some(record) = record else {
                return at;
            };
            prefetch(record);
        }
        end.max(from)
    }

    /// Returns a block of entries; a block that is too short is read again up to the queue's end.
    fn read_entries(&mut self, key: Key, end: usize) -> Option<Arc<Vec<u8>>> {
        let start = key.1 * ENTRY_BLOCK_COUNT;
        let lost = (self.queue.min_offset - start).max(0) as usize * ENTRY_BYTES;
        let stop = (start + ENTRY_BLOCK_COUNT).min(self.queue.max_offset);
        let (source, queue) = (&mut *self.source, self.queue.number);
        self.caches.entries.get(key, end, |known, data| {
            data.resize((stop - start) as usize * ENTRY_BYTES, 0);
            // Entries before the first offset are deleted; no pull reads there.
            let read = known.max(lost);
            data[known..read].fill(0);
            source.entries(queue, start + (read / ENTRY_BYTES) as i64, &mut data[read..])
        })
    }

    /// Appends the record at an offset if it is the message with this queue offset.
    fn record(&mut self, at: i64, offset: i64, size: usize, body: &mut Vec<u8>) -> Option<()> {
        let begin = body.len();
        let (mut from, end) = (offset, offset + size as i64);
        while from < end {
            let in_file = (from - self.log.first) % self.log.file_size;
            let in_block = in_file % LOG_BLOCK_BYTES;
            let start = from - in_block;
            let stop = (start + LOG_BLOCK_BYTES).min(from - in_file + self.log.file_size);
            let part = (end.min(stop) - start) as usize;
            // A block is identified by its start, because a file need not end with a whole block.
            let key = (0, start);
            if !is_in(self.last.log.as_ref(), key, part) {
                self.last.log = None;
                let (source, stop) = (&mut *self.source, stop.min(self.log.end));
                let block = self.caches.log.get(key, part, |known, data| {
                    data.resize((stop - start) as usize, 0);
                    source.log(start, known, data)
                })?;
                self.last.log = Some((key, block));
            }
            let (_, block) = self.last.log.as_ref()?;
            let bytes = block.get(in_block as usize..part)?;
            if bytes.len() == size {
                // The usual record is in one block. To examine the copy would stall the processor.
                let is_whole = be32(bytes, 0) as usize == size;
                if !is_whole || !is_message(bytes, self.name, at, offset) {
                    return None;
                }
                body.extend_from_slice(bytes);
                return Some(());
            }
            body.extend_from_slice(bytes);
            from = start + part as i64;
            // The size of a damaged entry may be anything up to the rest of the log.
            if body.len() - begin >= 4 && be32(body, begin) as usize != size {
                return None;
            }
        }
        is_message(&body[begin..], self.name, at, offset).then_some(())
    }
}

/// Returns whether a record is the message with these offsets of the queue with this id and topic.
#[inline]
fn is_message(record: &[u8], (queue_id, topic): (i32, &[u8]), at: i64, offset: i64) -> bool {
    let Some(fixed) = record.first_chunk::<FIXED_BYTES>() else {
        return false;
    };
    let hosts_v6 = (fixed[39] & HOSTS_V6).count_ones() as usize;
    let Some((fixed, rest)) = record.split_at_checked(FIXED_BYTES + V6_BYTES_MORE * hosts_v6)
    else {
        return false;
    };
    let body_bytes = be32(fixed, fixed.len() - 4) as usize;
    fixed[12..16] == queue_id.to_be_bytes()
        && fixed[20..28] == at.to_be_bytes()
        && fixed[28..36] == offset.to_be_bytes()
        && rest.get(body_bytes..).and_then(<[u8]>::split_first).is_some_and(|(&length, rest)| {
            usize::from(length) == topic.len() && rest.starts_with(topic)
        })
}

fn is_in(block: Option<&(Key, Arc<Vec<u8>>)>, key: Key, end: usize) -> bool {
    block.is_some_and(|(known, data)| *known == key && data.len() >= end)
}
