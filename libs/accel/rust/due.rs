// SPDX-License-Identifier: Apache-2.0
//! Due delayed messages: selects entries of a delay level, and stages their messages for the real
//! queues.
//!
//! This is the native version of `cometmq.broker.messages.delivered`, for plain records. Any other
//! record ends the batch, and Python examines it.

use crate::properties::{TIME_NAME, last_value, read_time};
use crate::range::{Record as Found, Texts, is_folder, parse};
use crate::scan::{be32, be64};
use crate::stage::{Record, Request, Stage};

const ENTRY_BYTES: usize = 20;
const RECORD_BYTES_MIN: usize = 91;
/// The size in filler entries, which stand for no record.
const FILLER_SIZE: usize = i32::MAX as usize;
/// Two records farther apart than this are not read together.
const GAP_BYTES_MAX: i64 = 8192;
const SPANS_MAX: usize = 16;
/// Flags of half messages.
const ODD_SYS_FLAGS: u32 = 0x4 | 0x8;
/// Bound on queue ids, because a topic has an array with one element per queue.
const QUEUE_COUNT_MAX: i32 = 1024;

/// The times that determine which entries are due.
#[derive(Clone, Copy)]
pub struct Times {
    /// The current time in milliseconds.
    pub now_ms: i64,
    /// Entries with a later time are due immediately: the clock must have been set back.
    pub due_at_most: i64,
    /// Messages due by this time may have been delivered before a crash.
    pub copied_until: i64,
}

/// The selected entries, and the ranges of the log that contain their records.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Selection {
    /// Number of entries.
    pub count: usize,
    /// Whether the next entry is not due yet.
    pub ends_at_undue: bool,
    /// Offset and size of each range of the log.
    pub spans: Vec<(i64, usize)>,
}

/// Selects leading entries until one is not due or must be left to Python, or until `bytes_max` is
/// reached; the first entry may exceed that limit.
#[must_use]
pub fn select(entries: &[u8], times: Times, file_size: i64, bytes_max: usize) -> Selection {
    let mut selection = Selection::default();
    let mut bytes = 0;
    for entry in entries.chunks_exact(ENTRY_BYTES) {
        let (offset, size, due_ms) = read_entry(entry);
        if times.now_ms < due_ms && due_ms <= times.due_at_most {
            selection.ends_at_undue = true;
            break;
        }
        let is_place = offset >= 0 && (RECORD_BYTES_MIN..FILLER_SIZE).contains(&size);
        if due_ms <= times.copied_until || !is_place || offset > i64::MAX - size as i64 {
            break;
        }
        let last = selection.spans.last().copied();
        let gap = last.and_then(|last| gap_to(last, offset, file_size));
        let more = gap.unwrap_or(0) + size;
        let is_full = gap.is_none() && selection.spans.len() == SPANS_MAX;
        if selection.count > 0 && (is_full || bytes + more > bytes_max) {
            break;
        }
        match selection.spans.last_mut().filter(|_| gap.is_some()) {
            Some(last) => last.1 += more,
            None => selection.spans.push((offset, size)),
        }
        bytes += more;
        selection.count += 1;
    }
    selection
}

fn read_entry(entry: &[u8]) -> (i64, usize, i64) {
    let size = usize::try_from(be32(entry, 8).cast_signed()).unwrap_or(0);
    (be64(entry, 0).unwrap_or(-1), size, be64(entry, 12).unwrap_or(0))
}

fn end_of(span: (i64, usize)) -> i64 {
    span.0 + span.1 as i64
}

/// Returns the number of bytes between a span and a record, if both can be read together: the
/// record follows the span closely and is in the same file.
fn gap_to(span: (i64, usize), offset: i64, file_size: i64) -> Option<usize> {
    let gap = offset - end_of(span);
    let is_near = (0..=GAP_BYTES_MAX).contains(&gap)
        && span.0.checked_div(file_size) == offset.checked_div(file_size);
    usize::try_from(gap).ok().filter(|_| is_near)
}

/// The real topic and queue of a delayed message.
struct Target<'a> {
    topic: &'a [u8],
    queue_id: i32,
    /// The delivery time of a timed message; empty for others.
    time: &'a [u8],
}

impl Stage {
    /// Stages the records of selected entries, each as one request, and stops at the first record
    /// that is not plain, or is not the next one of the first record's queue: its entry has changed
    /// on the disk. Returns the number of staged records.
    ///
    /// `spans` holds the bytes of the selection's spans. Messages for a topic in `others` are not
    /// plain, nor are messages with a time later than `now_ms`, which go to another level.
    pub fn stage_due(
        &mut self,
        entries: &[u8],
        selection: &Selection,
        spans: &[&[u8]],
        others: &[&[u8]],
        now_ms: i64,
    ) -> usize {
        let (mut number, mut before) = (0, None::<Found>);
        for (at, entry) in entries.chunks_exact(ENTRY_BYTES).take(selection.count).enumerate() {
            let (offset, size, _) = read_entry(entry);
            let is_in =
                |span: &(i64, usize)| span.0 <= offset && offset + size as i64 <= end_of(*span);
            while selection.spans.get(number).is_some_and(|span| !is_in(span)) {
                number += 1;
            }
            let staged = selection.spans.get(number).and_then(|&(start, _)| {
                let start = usize::try_from(offset - start).ok()?;
                let range = start..start + size;
                let span = spans.get(number)?;
                let data = span.get(range.clone())?;
                let found = parse(data, offset, false)?;
                if before.as_ref().is_some_and(|before| !found.follows(before)) {
                    return None;
                }
                let is_whole = found.size == data.len();
                is_whole.then_some(())?;
                self.stage_delayed(&found, number as u32, range.start, (others, now_ms))?;
                Some(found)
            });
            before = staged;
            if before.is_none() {
                return at;
            }
        }
        selection.count
    }

    /// Stages a record that begins at `start` of a span.
    fn stage_delayed(
        &mut self,
        found: &Found,
        chunk: u32,
        start: usize,
        (others, now_ms): (&[&[u8]], i64),
    ) -> Option<()> {
        if found.sys_flag & ODD_SYS_FLAGS != 0 {
            return None;
        }
        let text = str::from_utf8(found.properties).ok()?.as_bytes();
        let is_here = |target: &Target| !others.contains(&target.topic) && target.is_due(now_ms);
        let target = Target::of(text).filter(is_here)?;
        let body = start + found.body.start..start + found.body.end;
        let topic = self.number_of(&target)?;
        let texts = Texts::of(text)?;
        let record = Record {
            chunk,
            body,
            text: self.texts.len()..self.texts.len() + text.len(),
            hashes: self.hashes.len()..self.hashes.len(),
            topic,
            queue_id: target.queue_id,
            flag: found.flag(),
            sys_flag: found.plain_flags(),
            reconsume_times: found.reconsume_times(),
            born_timestamp: found.born_timestamp()?,
            born_host: found.hosts()?.0,
            tag_code: texts.tag_code(),
            ..Record::default()
        };
        self.push_delayed(record, found, &texts)
    }

    fn push_delayed(&mut self, mut record: Record, found: &Found, texts: &Texts) -> Option<()> {
        let is_long = record.body.len() > self.limits.body_bytes_max;
        if is_long || self.record_bytes(&record) > self.limits.request_bytes_max {
            return None;
        }
        self.texts.extend_from_slice(found.properties);
        texts.add_keys(self.topics[record.topic as usize].hash, &mut self.hashes);
        record.hashes.end = self.hashes.len();
        let number = self.records.len();
        self.records.push(record);
        self.requests.push(Request { records: number..number + 1, ..Request::default() });
        Some(())
    }

    /// Returns the number of a topic, learning the topic if it is new.
    fn number_of(&mut self, target: &Target) -> Option<u32> {
        let known = self.by_name.get(target.topic).copied();
        let number = known.or_else(|| self.learn(target.topic, 0))?;
        let slots = &mut self.topics[number as usize].slots;
        let queue = usize::try_from(target.queue_id).ok()?;
        if slots.len() <= queue {
            slots.resize(queue + 1, 0);
        }
        Some(number)
    }
}

impl<'a> Target<'a> {
    /// Reads the target from the properties; the last pair wins if a name is repeated.
    fn of(properties: &'a [u8]) -> Option<Self> {
        let topic = last_value(properties, b"REAL_TOPIC\x01");
        let queue_id = last_value(properties, b"REAL_QID\x01");
        let time = last_value(properties, TIME_NAME);
        let is_plain = (1..=4).contains(&queue_id.len()) && queue_id.iter().all(u8::is_ascii_digit);
        let queue_id = str::from_utf8(queue_id).ok().filter(|_| is_plain)?.parse().ok()?;
        (is_folder(topic) && queue_id < QUEUE_COUNT_MAX).then_some(Self { topic, queue_id, time })
    }

    fn is_due(&self, now_ms: i64) -> bool {
        self.time.is_empty() || read_time(self.time).is_some_and(|time| time <= now_ms)
    }
}
