// SPDX-License-Identifier: Apache-2.0
//! Turns the staged sends of a whole commit into records, queue entries, index keys and answers.

use std::ops::Range;

use crate::answers::{Answer, Answers, Ended};
use crate::host::{BORN_HOST_V6, Host, STORE_HOST_V6};
use crate::stage::{IN_TEXTS, Record, Stage};

/// Size of a record without hosts, body, topic and properties.
const RECORD_FIXED_BYTES: usize = 72;
const PROPERTIES_LENGTH_BYTES: usize = 2;
const MAGIC_V1: i32 = -626_843_481;
/// Minimum size of the marker that closes a log file.
const BLANK_BYTES_MIN: i64 = 8;
const CRC_MASK: u32 = 0x7FFF_FFFF;

/// The position of a commit's first record, and the commit's store time.
#[derive(Clone, Copy)]
pub struct Place {
    /// Physical offset of the first record.
    pub offset: i64,
    /// End of the file that contains this record.
    pub file_end: i64,
    /// Store time in milliseconds.
    pub now_ms: i64,
}

/// A queue that the commit touches.
pub struct OpenQueue {
    /// Number of the topic.
    pub topic: u32,
    /// Id of the queue.
    pub queue_id: i32,
    /// Offset of the queue's next message.
    pub next_offset: i64,
    /// Entries that the commit adds to the queue.
    pub entries: Vec<u8>,
    /// Number of entries.
    pub count: usize,
}

/// The index keys of a commit, in log order.
#[derive(Default)]
pub struct Keys {
    /// Hash of topic and key.
    pub hashes: Vec<i32>,
    /// Physical offset of the record.
    pub offsets: Vec<i64>,
    /// Store times as rows (end, time): the time of all keys before `end` that no earlier row
    /// covers.
    pub times: Vec<(usize, i64)>,
}

impl Keys {
    /// Sets the store time of all keys that do not have one yet.
    pub fn close(&mut self, timestamp: i64) {
        let count = self.hashes.len();
        match self.times.last_mut() {
            Some((end, last)) if *last == timestamp => *end = count,
            Some((end, _)) if *end == count => {}
            None if count == 0 => {}
            _ => self.times.push((count, timestamp)),
        }
    }

    /// Appends newer keys.
    pub fn append(&mut self, newer: &Self) {
        let before = self.hashes.len();
        self.hashes.extend_from_slice(&newer.hashes);
        self.offsets.extend_from_slice(&newer.offsets);
        for &(end, timestamp) in &newer.times {
            match self.times.last_mut() {
                Some((last_end, last)) if *last == timestamp => *last_end = before + end,
                _ => self.times.push((before + end, timestamp)),
            }
        }
    }

    /// Returns the store time of a key.
    #[must_use]
    pub fn timestamp(&self, index: usize) -> Option<i64> {
        let row = self.times.partition_point(|&(end, _)| end <= index);
        self.times.get(row).map(|&(_, timestamp)| timestamp)
    }
}

/// The results of `Stage::build` besides the records.
#[derive(Default)]
pub struct Built {
    /// Index keys.
    pub keys: Keys,
    /// Answers, grouped by whether they wait for the disk.
    pub groups: Vec<(bool, Answers)>,
    /// Number of messages.
    pub message_count: usize,
}

impl Stage {
    /// Returns how many requests, starting at `first`, fit into the file, and their total size.
    #[must_use]
    pub fn fit(&self, first: usize, count: usize, place: Place) -> (usize, usize) {
        let room = usize::try_from(place.file_end - place.offset - BLANK_BYTES_MIN).unwrap_or(0);
        let (mut fitting, mut bytes) = (0, 0);
        for request in &self.requests[first..first + count] {
            let more = self.bytes_of(request.records.clone());
            if bytes + more > room {
                break;
            }
            bytes += more;
            fitting += 1;
        }
        (fitting, bytes)
    }

    /// Finds the queues of these requests. The caller sets their next offsets.
    pub fn open_queues(&mut self, first: usize, count: usize) -> Vec<OpenQueue> {
        let mut open: Vec<OpenQueue> = vec![];
        for request in &self.requests[first..first + count] {
            for record in &self.records[request.records.clone()] {
                let topic = &mut self.topics[record.topic as usize];
                let Some(slot) = usize::try_from(record.queue_id)
                    .ok()
                    .and_then(|queue| topic.slots.get_mut(queue))
                else {
                    unreachable!("staging checks the queue");
                };
                if *slot == 0 {
                    open.push(OpenQueue {
                        topic: record.topic,
                        queue_id: record.queue_id,
                        next_offset: 0,
                        entries: vec![],
                        count: 0,
                    });
                    *slot = u32::try_from(open.len()).unwrap_or(u32::MAX);
                }
            }
        }
        open
    }

    /// Closes the queues that `open_queues` found.
    pub fn close_queues(&mut self, open: &[OpenQueue]) {
        for queue in open {
            let slots = &mut self.topics[queue.topic as usize].slots;
            if let Some(slot) =
                usize::try_from(queue.queue_id).ok().and_then(|queue| slots.get_mut(queue))
            {
                *slot = 0;
            }
        }
    }

    /// Writes the records of these requests to `out`, whose size must match exactly, and adds the
    /// entries to the queues.
    pub fn build(
        &self,
        requests: Range<usize>,
        chunks: &[&[u8]],
        place: Place,
        open: &mut [OpenQueue],
        out: &mut [u8],
    ) -> Built {
        let mut built = Built::default();
        let mut at = 0;
        for request in &self.requests[requests] {
            if built.groups.last().is_none_or(|(waits, _)| *waits != request.waits) {
                built.groups.push((request.waits, Answers::default()));
            }
            let Some((_, answers)) = built.groups.last_mut() else { unreachable!() };
            let mut answer = Answer {
                peer: request.peer,
                opaque: request.opaque,
                serialization: request.serialization,
                back: request.back.clone(),
                ..Answer::default()
            };
            answer.places.start = answers.places.len();
            for record in &self.records[request.records.clone()] {
                let slot = self.topics[record.topic as usize].slots[record.queue_id as usize];
                let queue = &mut open[slot as usize - 1];
                let bytes = self.record_bytes(record);
                let offset = place.offset + at as i64;
                let placed = Placed { offset, queue_offset: queue.next_offset, place };
                let body = self.body_of(record, chunks);
                self.write(record, body, placed, &mut out[at..at + bytes]);
                queue.entries.extend_from_slice(&offset.to_be_bytes());
                queue.entries.extend_from_slice(&(bytes as u32).to_be_bytes());
                let due_ms = place.now_ms.saturating_add(record.tag_code);
                let code = if record.is_delayed { due_ms } else { record.tag_code };
                queue.entries.extend_from_slice(&code.to_be_bytes());
                queue.next_offset += 1;
                queue.count += 1;
                built.keys.hashes.extend_from_slice(&self.hashes[record.hashes.clone()]);
                built.keys.offsets.resize(built.keys.hashes.len(), offset);
                if answer.size == 0 {
                    answer.topic = record.topic;
                    answer.level = record.is_delayed.then_some(record.queue_id);
                    answer.queue_id = request.queue_id;
                    answer.queue_offset = queue.next_offset - 1;
                }
                answer.size += bytes;
                answers.places.push(offset);
                if self.is_half(record) {
                    answers.half_count += 1;
                    let place = (offset, answer.queue_offset);
                    answers.halves.extend(self.half_of(record, body, place, bytes));
                }
                at += bytes;
            }
            built.message_count += request.records.len();
            if let Some(end) = request.end {
                answers.places.truncate(answer.places.start);
                answers.ends.push(Ended { end, topic: answer.topic });
                continue;
            }
            answer.places.end = answers.places.len();
            answers.rows.push(answer);
        }
        built.keys.close(place.now_ms);
        built
    }

    pub(crate) fn bytes_of(&self, records: Range<usize>) -> usize {
        self.records[records].iter().map(|record| self.record_bytes(record)).sum()
    }

    pub(crate) fn record_bytes(&self, record: &Record) -> usize {
        RECORD_FIXED_BYTES
            + record.born_host.size()
            + self.host.size()
            + record.body.len()
            + self.topics[record.topic as usize].field.len()
            + PROPERTIES_LENGTH_BYTES
            + record.text.len()
    }

    fn body_of<'a>(&'a self, record: &Record, chunks: &[&'a [u8]]) -> &'a [u8] {
        let content =
            if record.chunk == IN_TEXTS { &self.texts } else { chunks[record.chunk as usize] };
        &content[record.body.clone()]
    }

    fn write(&self, record: &Record, body: &[u8], placed: Placed, out: &mut [u8]) {
        let topic = &self.topics[record.topic as usize].field;
        let text = &self.texts[record.text.clone()];
        let crc = crc32fast::hash(body) & CRC_MASK;
        let size = out.len() as u32;
        let flags = record.born_host.flag(BORN_HOST_V6) | self.host.flag(STORE_HOST_V6);
        let mut at = 0;
        let mut put = |bytes: &[u8]| {
            out[at..at + bytes.len()].copy_from_slice(bytes);
            at += bytes.len();
        };
        put(&size.to_be_bytes());
        put(&MAGIC_V1.to_be_bytes());
        put(&crc.to_be_bytes());
        put(&record.queue_id.to_be_bytes());
        put(&record.flag.to_be_bytes());
        put(&placed.queue_offset.to_be_bytes());
        put(&placed.offset.to_be_bytes());
        put(&(record.sys_flag | flags).to_be_bytes());
        put(&record.born_timestamp.to_be_bytes());
        match &record.born_host {
            Host::V4(host) => put(host),
            Host::V6(host) => put(host),
        }
        put(&placed.place.now_ms.to_be_bytes());
        match &self.host {
            Host::V4(host) => put(host),
            Host::V6(host) => put(host),
        }
        put(&record.reconsume_times.to_be_bytes());
        put(&record.prepared.to_be_bytes());
        put(&(body.len() as u32).to_be_bytes());
        put(body);
        put(topic);
        put(&(text.len() as u16).to_be_bytes());
        put(text);
        debug_assert_eq!(at, out.len());
    }
}

#[derive(Clone, Copy)]
struct Placed {
    offset: i64,
    queue_offset: i64,
    place: Place,
}

#[cfg(test)]
mod tests {
    use super::*;

    fn keys(offsets: &[i64], timestamp: i64) -> Keys {
        let mut keys = Keys { offsets: offsets.to_vec(), ..Keys::default() };
        keys.hashes.resize(offsets.len(), 1);
        keys.close(timestamp);
        keys
    }

    #[test]
    fn appended_keys_keep_their_times() {
        let mut all = keys(&[10, 20], 1);
        for newer in [keys(&[30], 1), keys(&[], 2), keys(&[40, 50], 3), keys(&[60], 3)] {
            all.append(&newer);
        }
        assert_eq!(all.offsets, [10, 20, 30, 40, 50, 60]);
        assert_eq!(all.times, [(3, 1), (6, 3)]);
        let times: Vec<_> = (0..7).map(|index| all.timestamp(index)).collect();
        assert_eq!(times, [Some(1), Some(1), Some(1), Some(3), Some(3), Some(3), None]);
    }
}
