// SPDX-License-Identifier: Apache-2.0
//! Derives the queue entries and index keys of all plain records at the beginning of a range of the
//! log, as Python's scanner and dispatcher do for one record at a time.
//!
//! This is the native version of `scan_record` in `cometmq.remoting` and of `Dispatcher` in
//! `cometmq.store`. Reading stops at anything but a plain record: the end of the data, a blank,
//! damage, or a record that only Python can interpret, for example because its text is not UTF-8.
//! Python then examines that position.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::ops::Range;

use crate::commit::Keys;
use crate::host::{BORN_HOST_V6, HOST_V4_BYTES, HOST_V6_BYTES, Host, STORE_HOST_V6};
use crate::properties::{
    PAIR_SEPARATOR, TIME_NAME, index_hash_text, java_hash, java_hash_text, last_value, read_time,
};
use crate::scan::{be32, be64};

const MAGICS: [u32; 2] = [0xDAA3_20A7, 0xDAA3_20AB];
const MAGIC_LONG_TOPIC: u32 = MAGICS[1];
const MAGIC_BLANK: u32 = 0xCBD4_3194;
const BLANK_BYTES_MIN: usize = 8;
/// Position of the physical offset in a record.
const HEAD_BYTES: usize = 36;
const RECORD_BYTES_MIN: usize = 91;
/// Position of the sender's address in a record.
const BORN_HOST_AT: usize = 48;
const CRC_MASK: u32 = 0x7FFF_FFFF;
/// The flag of half messages and rollbacks, which get no queue entry.
const UNQUEUED: u32 = 0x4;
const ROLLBACK: u32 = 0xC;
/// Larger tag codes are delivery times.
const TAG_CODE_MAX: i64 = i32::MAX as i64;

/// The settings for reading a range.
pub struct Rules<'a> {
    /// Whether bodies are checked against their CRCs.
    pub check_crc: bool,
    /// Whether index keys are collected.
    pub is_indexing: bool,
    /// The topic whose queue entries hold delivery times instead of tag codes.
    pub delayed_topic: &'a [u8],
    /// The delays of its queues.
    pub delays_ms: &'a [i64],
    /// The delay of its other queues.
    pub other_delay_ms: i64,
}

/// Records of one queue with consecutive queue offsets.
pub struct Run<'a> {
    /// Name of the topic.
    pub topic: &'a str,
    /// Id of the queue.
    pub queue_id: i32,
    /// Queue offset of the first record.
    pub first: i64,
    /// Queue offset after the last record.
    pub end: i64,
    /// Entries, 20 bytes each.
    pub entries: Vec<u8>,
}

/// The contents of the plain records at the beginning of a range.
#[derive(Default)]
pub struct Found<'a> {
    /// Total size of the records.
    pub size: usize,
    /// Number of records.
    pub count: usize,
    /// Store time of the last record.
    pub timestamp: i64,
    /// Runs, ordered by their first records.
    pub runs: Vec<Run<'a>>,
    /// Index keys, in log order.
    pub keys: Keys,
}

/// The parts of one record.
pub struct Record<'a> {
    data: &'a [u8],
    /// Its size.
    pub size: usize,
    queue_id: i32,
    queue_offset: i64,
    pub(crate) sys_flag: u32,
    timestamp: i64,
    pub(crate) body: Range<usize>,
    pub(crate) topic: &'a [u8],
    pub(crate) properties: &'a [u8],
}

impl Record<'_> {
    /// Returns the application's flag.
    pub(crate) fn flag(&self) -> i32 {
        be32(self.data, 16).cast_signed()
    }

    pub(crate) fn born_timestamp(&self) -> Option<i64> {
        be64(self.data, 40)
    }

    /// Returns the addresses of the sender and of the broker.
    pub(crate) fn hosts(&self) -> Option<(Host, Host)> {
        let timestamp_at = BORN_HOST_AT + host_bytes(self.sys_flag, BORN_HOST_V6);
        let host = |range: Range<usize>| Host::new(self.data.get(range)?);
        let stored = timestamp_at + 8..self.body.start.checked_sub(16)?;
        Some((host(BORN_HOST_AT..timestamp_at)?, host(stored)?))
    }

    /// Returns the count of failed deliveries.
    pub(crate) fn reconsume_times(&self) -> i32 {
        be32(self.data, self.body.start - 16).cast_signed()
    }

    /// Returns the flags without those of the addresses.
    pub(crate) fn plain_flags(&self) -> i32 {
        self.sys_flag.cast_signed() & !(BORN_HOST_V6 | STORE_HOST_V6)
    }

    /// Returns whether this is the next record of another record's queue.
    pub(crate) fn follows(&self, before: &Self) -> bool {
        let is_next = before.queue_offset.checked_add(1) == Some(self.queue_offset);
        is_next && self.queue_id == before.queue_id && self.topic == before.topic
    }
}

/// The values that the records of one queue share.
struct Queue<'a> {
    topic: &'a str,
    /// The hash of `topic#`.
    topic_hash: u32,
    delay_ms: Option<i64>,
    /// Number of the run that the next record may continue.
    run: Option<usize>,
}

/// Reads the plain records at the beginning of `data`, which starts at this offset of the log.
#[must_use]
pub fn read<'a>(data: &'a [u8], offset: i64, rules: &Rules) -> Found<'a> {
    let mut found = Found::default();
    let mut queues = HashMap::new();
    while let Some(size) = step(&data[found.size..], offset, &mut found, &mut queues, rules) {
        found.size += size;
        found.count += 1;
    }
    found
}

type Queues<'a> = HashMap<(&'a [u8], i32), Queue<'a>>;

/// Adds one record; changes nothing if the record is not plain.
fn step<'a>(
    data: &'a [u8],
    base: i64,
    found: &mut Found<'a>,
    queues: &mut Queues<'a>,
    rules: &Rules,
) -> Option<usize> {
    let offset = base.checked_add(found.size as i64)?;
    let record = parse(data, offset, rules.check_crc)?;
    // The mark of a deleted topic: only Python drops queues.
    if record.queue_id < 0 || (rules.check_crc && !is_sound(record.properties)) {
        return None;
    }
    let queue = match queues.entry((record.topic, record.queue_id)) {
        Entry::Occupied(entry) => entry.into_mut(),
        Entry::Vacant(entry) => entry.insert(open(record.topic, record.queue_id, rules)?),
    };
    let texts = Texts::of(record.properties)?;
    let is_queued = record.sys_flag & UNQUEUED == 0;
    let end = record.queue_offset.checked_add(1)?;
    let code = match queue.delay_ms {
        Some(delay_ms) => due_ms(record.properties, record.timestamp.checked_add(delay_ms)?),
        None => texts.tag_code(),
    };
    if is_queued {
        let number = run_of(&record, queue, &mut found.runs);
        let run = &mut found.runs[number];
        run.entries.extend_from_slice(&offset.to_be_bytes());
        run.entries.extend_from_slice(&(record.size as u32).to_be_bytes());
        run.entries.extend_from_slice(&code.to_be_bytes());
        run.end = end;
    }
    if rules.is_indexing && record.sys_flag & ROLLBACK != ROLLBACK {
        texts.add_keys(queue.topic_hash, &mut found.keys.hashes);
        found.keys.offsets.resize(found.keys.hashes.len(), offset);
        found.keys.close(record.timestamp);
    }
    found.timestamp = record.timestamp;
    Some(record.size)
}

/// Returns when a delayed message is due: at its own time if that is before the end of its level.
fn due_ms(properties: &[u8], end_ms: i64) -> i64 {
    let time = read_time(last_value(properties, TIME_NAME));
    time.filter(|&time| time > TAG_CODE_MAX).map_or(end_ms, |time| time.min(end_ms))
}

/// Returns the number of the run that this record continues, or of a new run.
fn run_of<'a>(record: &Record, queue: &mut Queue<'a>, runs: &mut Vec<Run<'a>>) -> usize {
    // A queue that starts over has offset 0, and offset 0 always begins a run.
    let is_next = |run: &Run| run.end == record.queue_offset && record.queue_offset != 0;
    if let Some(number) = queue.run.filter(|&number| is_next(&runs[number])) {
        return number;
    }
    runs.push(Run {
        topic: queue.topic,
        queue_id: record.queue_id,
        first: record.queue_offset,
        end: record.queue_offset,
        entries: vec![],
    });
    queue.run = Some(runs.len() - 1);
    runs.len() - 1
}

fn open<'a>(topic: &'a [u8], queue_id: i32, rules: &Rules) -> Option<Queue<'a>> {
    let name = str::from_utf8(topic).ok().filter(|_| is_folder(topic))?;
    let known = usize::try_from(queue_id).ok().and_then(|queue| rules.delays_ms.get(queue));
    let delay_ms = *known.unwrap_or(&rules.other_delay_ms);
    Some(Queue {
        topic: name,
        topic_hash: java_hash(java_hash_text(0, name), b"#"),
        delay_ms: (topic == rules.delayed_topic).then_some(delay_ms),
        run: None,
    })
}

/// Returns whether a topic can be the name of a folder.
pub(crate) fn is_folder(topic: &[u8]) -> bool {
    !matches!(topic, b"" | b"." | b"..") && !topic.contains(&b'/') && !topic.contains(&0)
}

/// Reads the record at the beginning of `data`, which starts at this offset of the log.
#[must_use]
pub fn parse(data: &[u8], offset: i64, check_crc: bool) -> Option<Record<'_>> {
    if data.len() < RECORD_BYTES_MIN {
        return None;
    }
    let (size, magic) = (usize::try_from(be32(data, 0)).ok()?, be32(data, 4));
    if !MAGICS.contains(&magic) || size < RECORD_BYTES_MIN || size > i32::MAX as usize {
        return None;
    }
    let record = data.get(..size)?;
    if be64(record, 28)? != offset {
        return None;
    }
    let sys_flag = be32(record, 36);
    let timestamp_at = BORN_HOST_AT + host_bytes(sys_flag, BORN_HOST_V6);
    let body_at = timestamp_at + 8 + host_bytes(sys_flag, STORE_HOST_V6) + 4 + 8 + 4;
    let body_bytes = usize::try_from(be32_signed(record, body_at - 4)?).ok()?;
    let place = body_at..body_at.checked_add(body_bytes)?;
    let body = record.get(place.clone())?;
    let rest = &record[place.end..];
    let (topic_bytes, rest) = if magic == MAGIC_LONG_TOPIC {
        (short(rest)?, rest.get(2..)?)
    } else {
        (usize::from(*rest.first()?), &rest[1..])
    };
    let (topic, rest) = rest.split_at_checked(topic_bytes)?;
    let properties_bytes = short(rest)?;
    let properties = rest.get(2..)?;
    // A torn record at the end of the log has such properties; only Python recognizes them.
    if properties.len() != properties_bytes || properties.last() == Some(&0) {
        return None;
    }
    if check_crc && crc32fast::hash(body) & CRC_MASK != be32(record, 8) {
        return None;
    }
    Some(Record {
        data: record,
        size,
        queue_id: be32_signed(record, 12)?,
        queue_offset: be64(record, 20)?,
        sys_flag,
        timestamp: be64(record, timestamp_at)?,
        body: place,
        topic,
        properties,
    })
}

/// Returns the size of the address to which a bit of the flags belongs.
fn host_bytes(sys_flag: u32, bit: i32) -> usize {
    if sys_flag.cast_signed() & bit == 0 { HOST_V4_BYTES } else { HOST_V6_BYTES }
}

/// Returns whether a property text is UTF-8, and each pair has a name. Python examines other records.
fn is_sound(properties: &[u8]) -> bool {
    let is_pair =
        |pair: &[u8]| pair.is_empty() || pair.iter().position(|&byte| byte == 1) > Some(0);
    properties.split(|&byte| byte == PAIR_SEPARATOR).all(is_pair)
        && str::from_utf8(properties).is_ok()
}

/// The properties from which queue entries and index keys are derived; the last pair wins if a name
/// is repeated.
#[derive(Default)]
pub(crate) struct Texts<'a> {
    unique_key: &'a str,
    keys: &'a str,
    tags: &'a str,
}

impl<'a> Texts<'a> {
    pub(crate) fn of(properties: &'a [u8]) -> Option<Self> {
        let (mut unique_key, mut keys, mut tags): (&[u8], &[u8], &[u8]) = (b"", b"", b"");
        for pair in properties.split(|&byte| byte == PAIR_SEPARATOR) {
            let place = match pair {
                [b'T', b'A', b'G', b'S', 1, ..] => &mut tags,
                [b'K', b'E', b'Y', b'S', 1, ..] => &mut keys,
                [b'U', b'N', b'I', b'Q', b'_', b'K', b'E', b'Y', 1, ..] => &mut unique_key,
                _ => continue,
            };
            let start = pair.iter().position(|&byte| byte == 1)? + 1;
            if start < pair.len() {
                *place = &pair[start..];
            }
        }
        Some(Self {
            unique_key: str::from_utf8(unique_key).ok()?,
            keys: str::from_utf8(keys).ok()?,
            tags: str::from_utf8(tags).ok()?,
        })
    }

    pub(crate) fn tag_code(&self) -> i64 {
        i64::from(java_hash_text(0, self.tags).cast_signed())
    }

    pub(crate) fn add_keys(&self, topic_hash: u32, hashes: &mut Vec<i32>) {
        if !self.unique_key.is_empty() {
            hashes.push(index_hash_text(topic_hash, self.unique_key));
        }
        let keys = self.keys.split(' ').filter(|key| !key.is_empty());
        hashes.extend(keys.map(|key| index_hash_text(topic_hash, key)));
    }
}

/// Follows the headers of whole records from the beginning of `data`, which starts at `offset` of
/// the log. Returns the total size of these records and the size of the next one, which is 0 if its
/// header is incomplete. Stops before `bytes_max` is exceeded, but never before the first record.
/// Returns `None` if a header is wrong.
#[must_use]
pub fn follow(
    data: &[u8],
    offset: i64,
    file_size: i64,
    bytes_max: usize,
) -> Option<(usize, usize)> {
    let mut at = 0;
    while data.len() - at >= BLANK_BYTES_MIN {
        let place = offset.checked_add(at as i64)?;
        let file_left = file_size.checked_sub(place.checked_rem_euclid(file_size)?)?;
        let (size, magic) = (be32_signed(data, at)?, be32(data, at + 4));
        if MAGICS.contains(&magic) {
            if data.len() - at < HEAD_BYTES {
                break;
            }
            let is_plain = be64(data, at + 28)? == place && size >= RECORD_BYTES_MIN as i32;
            if !is_plain || i64::from(size) > file_left - BLANK_BYTES_MIN as i64 {
                return None;
            }
        } else if magic != MAGIC_BLANK || i64::from(size) != file_left {
            return None;
        }
        let size = usize::try_from(size).ok()?;
        if size > data.len() - at || (at > 0 && at + size > bytes_max) {
            return Some((at, size));
        }
        at += size;
    }
    Some((at, 0))
}

fn be32_signed(bytes: &[u8], at: usize) -> Option<i32> {
    Some(i32::from_be_bytes(bytes.get(at..at + 4)?.try_into().ok()?))
}

fn short(bytes: &[u8]) -> Option<usize> {
    usize::try_from(i16::from_be_bytes(bytes.get(..2)?.try_into().ok()?)).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    const RULES: Rules<'static> = Rules {
        check_crc: true,
        is_indexing: true,
        delayed_topic: b"SCHEDULE",
        delays_ms: &[1_000],
        other_delay_ms: 5_000,
    };
    const KEYS: &[u8] = b"KEYS\x01k";

    /// A record with a body of two bytes, stored at second 3.
    fn record(at: i64, topic: &[u8], queue: (i32, i64), flags: u32, properties: &[u8]) -> Vec<u8> {
        let body = b"xy";
        let mut rest = vec![0; 8]; // the sender
        rest.extend(3_000i64.to_be_bytes());
        rest.extend([0; 8 + 4 + 8]); // the broker, deliveries, the prepared offset
        rest.extend((body.len() as u32).to_be_bytes());
        rest.extend(body);
        rest.push(topic.len() as u8);
        rest.extend(topic);
        rest.extend((properties.len() as u16).to_be_bytes());
        rest.extend(properties);
        let mut data = ((48 + rest.len()) as u32).to_be_bytes().to_vec();
        data.extend(MAGICS[0].to_be_bytes());
        data.extend((crc32fast::hash(body) & CRC_MASK).to_be_bytes());
        data.extend(queue.0.to_be_bytes());
        data.extend([0; 4]); // the application's flag
        data.extend(queue.1.to_be_bytes());
        data.extend(at.to_be_bytes());
        data.extend(flags.to_be_bytes());
        data.extend([0; 8]); // the time of sending
        [data, rest].concat()
    }

    /// Topic, queue with offset, flags and properties of a record.
    type Parts<'a> = (&'a [u8], (i32, i64), u32, &'a [u8]);

    /// Puts records one after another from this offset of the log on.
    fn log(begin: i64, records: &[Parts]) -> Vec<u8> {
        let mut data = vec![];
        for &(topic, queue, flags, properties) in records {
            data.extend(record(begin + data.len() as i64, topic, queue, flags, properties));
        }
        data
    }

    #[test]
    fn consecutive_records_of_a_queue_form_a_run() {
        let data =
            log(1_000, &[(b"a", (0, 7), 0, KEYS), (b"b", (0, 1), 0, b""), (b"a", (0, 8), 0, b"")]);
        let found = read(&data, 1_000, &RULES);
        assert_eq!((found.count, found.size, found.timestamp), (3, data.len(), 3_000));
        let runs: Vec<_> = found.runs.iter().map(|run| (run.topic, run.first, run.end)).collect();
        assert_eq!(runs, [("a", 7, 9), ("b", 1, 2)]);
        assert_eq!(found.keys.hashes, [index_hash_text(java_hash(0, b"a#"), "k")]);
        assert_eq!(found.keys.offsets, [1_000]);
    }

    #[test]
    fn delayed_records_carry_their_delivery_times() {
        let data = log(0, &[(b"SCHEDULE", (0, 0), 0, b""), (b"SCHEDULE", (1, 0), 0, b"")]);
        let found = read(&data, 0, &RULES);
        let due: Vec<_> = found.runs.iter().map(|run| be64(&run.entries, 12)).collect();
        assert_eq!(due, [Some(4_000), Some(8_000)]);
        let end_ms = 1 << 40;
        let text = b"TIMER_OUT_MS\x015000000000\x02TIMER_OUT_MS\x01\x02k\x01v";
        assert_eq!(due_ms(text, end_ms), 5_000_000_000, "its own time");
        assert_eq!(due_ms(text, 4_000), 4_000, "the level ends first");
        assert_eq!(due_ms(b"TIMER_OUT_MS\x0177", end_ms), end_ms, "no time");
        assert_eq!(due_ms(b"TIMER_OUT_MS\x015000000000\x02TIMER_OUT_MS\x01x", end_ms), end_ms);
    }

    #[test]
    fn half_messages_have_keys_only_and_rollbacks_neither() {
        let data = log(0, &[(b"a", (0, 0), UNQUEUED, KEYS), (b"a", (0, 0), ROLLBACK, KEYS)]);
        let found = read(&data, 0, &RULES);
        assert_eq!((found.count, found.runs.len(), found.keys.hashes.len()), (2, 0, 1));
    }

    #[test]
    fn reading_stops_at_what_only_python_examines() {
        let good = log(0, &[(b"a", (0, 0), 0, b"")]);
        let count = |change: &dyn Fn(&mut Vec<u8>)| {
            let mut bad = record(good.len() as i64, b"b", (0, 0), 0, b"k\x01v");
            change(&mut bad);
            read(&[good.clone(), bad].concat(), 0, &RULES).count
        };
        assert_eq!(count(&|_| ()), 2);
        assert_eq!(count(&|data| data[8] ^= 1), 1, "CRC");
        assert_eq!(count(&|data| data[4] ^= 1), 1, "magic");
        assert_eq!(count(&|data| data[35] ^= 1), 1, "offset");
        assert_eq!(count(&|data| data[12] = 0x80), 1, "the mark of a deletion");
        assert_eq!(count(&|data| *data.last_mut().unwrap() = 0), 1, "torn");
        assert_eq!(count(&|data| *data.last_mut().unwrap() = 0xff), 1, "UTF-8");
        assert_eq!(count(&|data| data.truncate(data.len() - 1)), 1, "incomplete");
    }

    #[test]
    fn topics_that_are_no_folder_are_left_to_python() {
        for topic in [b"a/b".as_slice(), b".", b"..", b"", b"a\0"] {
            assert_eq!(read(&record(0, topic, (0, 0), 0, b""), 0, &RULES).count, 0);
        }
    }

    #[test]
    fn headers_are_followed_up_to_a_limit_and_the_end_of_a_file() {
        let data = log(0, &[(b"a", (0, 0), 0, b""), (b"a", (0, 1), 0, b"")]);
        let size = data.len() / 2;
        assert_eq!(follow(&data, 0, 4_096, usize::MAX), Some((2 * size, 0)));
        assert_eq!(follow(&data, 0, 4_096, size + 1), Some((size, size)));
        assert_eq!(follow(&data, 0, 4_096, 1), Some((size, size)), "the first is always whole");
        assert_eq!(follow(&data[..size + 20], 0, 4_096, usize::MAX), Some((size, 0)));
        assert_eq!(follow(&data, 8, 4_096, usize::MAX), None, "a wrong offset");
        assert_eq!(follow(&data, 0, size as i64, usize::MAX), None, "beyond the file");
    }
}
