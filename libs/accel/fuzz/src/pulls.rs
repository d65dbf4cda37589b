// SPDX-License-Identifier: Apache-2.0
//! Fuzz test of staging and answering pulls and renewals of locks. Nothing may panic, every answer
//! to a pull must contain the records that a plain search finds, and every staged renewal must have
//! the body of a known renewal. The same seed produces the same inputs.

use cometmq_accel::frames::{Frame, Next, frame_at};
use cometmq_accel::pull::answer::Template;
use cometmq_accel::pull::select::{Caches, ENTRY_BYTES, Filter, Source};
use cometmq_accel::pull::sql::{Condition, Program, Test};
use cometmq_accel::pull::stage::{Context, Pulls, Reader, Staged, answer};
use cometmq_accel::pull::{Limits, LogView, Queue};
use cometmq_accel::scan::be32;

use crate::input::{Random, Seen, binary_head, json_head, mutate};

const RECORDS: i64 = 3000;
const FILE_SIZE: i64 = 300_000;
const BEFORE: &[u8] = b"another answer";
const CHUNK_FRAMES_MAX: u32 = 4;
const LIMITS: Limits = Limits { count_max: 32, bytes_max: 6000, memory_bytes: 400_000 };

/// A log with one queue, and the faults that a run injects.
struct World {
    log: Vec<u8>,
    entries: Vec<u8>,
    places: Vec<(i64, usize, i64, i64)>, // offset, size, tag code, level
    view: LogView,
    min_offset: i64,
    cold: u32,
    random: Random,
}

impl World {
    fn new(random: &mut Random) -> Self {
        let (mut log, mut entries, mut places) = (vec![], vec![], vec![]);
        for number in 0..RECORDS {
            let level = i64::from(random.below(8));
            let text = format!("level\u{1}{level}\u{2}");
            let body = random.below(300) as usize;
            let size = 88 + body + 2 + 2 + text.len();
            let left = FILE_SIZE as usize - log.len() % FILE_SIZE as usize;
            if size + 8 > left {
                log.resize(log.len() + left, 0);
            }
            let offset = log.len() as i64;
            let mut record = vec![0; 88];
            record[..4].copy_from_slice(&(size as u32).to_be_bytes());
            record[4..8].copy_from_slice(&0xDAA3_20A7u32.to_be_bytes());
            record[20..28].copy_from_slice(&number.to_be_bytes());
            record[28..36].copy_from_slice(&offset.to_be_bytes());
            record[84..88].copy_from_slice(&(body as u32).to_be_bytes());
            record.resize(88 + body, b'x');
            record.extend([1, b'T']);
            record.extend((text.len() as u16).to_be_bytes());
            record.extend(text.bytes());
            if random.below(400) == 0 {
                // Its size, queue id, queue offset, physical offset or topic is another one.
                let at = *random.pick(&[&0, &15, &27, &35, &(88 + body), &(89 + body)]);
                record[at] ^= 1;
            }
            log.extend(&record);
            let tag = i64::from(random.below(3));
            entries.extend(offset.to_be_bytes());
            entries.extend((size as i32).to_be_bytes());
            entries.extend(tag.to_be_bytes());
            places.push((offset, size, tag, level));
            if random.below(4) == 0 {
                log.resize(log.len() + random.below(900) as usize, 0); // of other queues
                let over = log.len() % FILE_SIZE as usize;
                if over < 900 {
                    log.truncate(log.len() - over);
                }
            }
        }
        let view =
            LogView { first: 0, end: log.len() as i64, file_size: FILE_SIZE, damage: vec![] };
        let random = Random::new(u64::from(random.below(1 << 30)));
        Self { log, entries, places, view, min_offset: 0, cold: 0, random }
    }

    fn disturb(&mut self, random: &mut Random) {
        self.cold = *random.pick(&[&0, &0, &2]);
        self.min_offset = i64::from(random.below(2000));
        self.view.first = FILE_SIZE * i64::from(random.below(2));
        let start = i64::from(random.below(self.log.len() as u32));
        self.view.damage = if random.below(3) == 0 { vec![(start, start + 500)] } else { vec![] };
    }

    fn queue(&self) -> Queue {
        Queue { number: 1, min_offset: self.min_offset, max_offset: RECORDS }
    }

    /// Returns the body of the expected answer, found by a plain search of an undamaged log.
    fn expected(&self, from: i64, count_max: i64, wants: impl Fn(i64, i64) -> bool) -> Vec<u8> {
        let (mut body, mut count) = (vec![], 0);
        let most = count_max.max(800);
        for &(offset, size, tag, level) in
            self.places.iter().skip(from as usize).take(most as usize)
        {
            if count >= count_max || (count > 0 && body.len() + size > LIMITS.bytes_max) {
                break;
            }
            if wants(tag, level) {
                body.extend_from_slice(&self.log[offset as usize..offset as usize + size]);
                count += 1;
            }
        }
        body
    }
}

impl Source for World {
    fn log(&mut self, start: i64, known: usize, block: &mut [u8]) -> bool {
        let (offset, into) = (start + known as i64, &mut block[known..]);
        let (start, count) = (usize::try_from(offset).expect("an offset in the log"), into.len());
        assert_eq!(offset / FILE_SIZE, (offset + count as i64 - 1) / FILE_SIZE, "one file");
        assert!(count > 0 && offset >= self.view.first && start + count <= self.log.len());
        let is_cold = self.cold > 0 && self.random.below(self.cold) > 0;
        into.copy_from_slice(&self.log[start..start + count]);
        !is_cold
    }

    fn entries(&mut self, _queue: usize, queue_offset: i64, into: &mut [u8]) -> bool {
        assert!(!into.is_empty() && queue_offset >= self.min_offset);
        let start = queue_offset as usize * ENTRY_BYTES;
        into.copy_from_slice(&self.entries[start..start + into.len()]);
        true
    }
}

fn readers(pulls: &mut Pulls) {
    for (topic, filter) in
        [("all", Filter::All), ("tags", Filter::Tags(vec![0, 2])), ("sql", Filter::Sql(program()))]
    {
        for is_binary in [false, true] {
            let fields = fields(topic, "0", "0", "4");
            let head = head(is_binary, &fields);
            let filter = match &filter {
                Filter::All => Filter::All,
                Filter::Tags(codes) => Filter::Tags(codes.clone()),
                Filter::Sql(program) => Filter::Sql(program.clone()),
            };
            let reader = Reader { filter, suggested_id: 0, queue_count: 1 };
            assert!(pulls.learn(u8::from(is_binary), &head, reader));
        }
    }
}

/// Bodies of requests for locks; the last one is not known.
const LOCKS: [&[u8]; 3] = [b"{\"queue\":1}", b"{\"queue\":12}", b"{\"queue\":2}"];

fn renewals(pulls: &mut Pulls) {
    for body in &LOCKS[..2] {
        assert!(pulls.renewals.learn(0, &json_head(41, &[]), body, body));
    }
}

fn program() -> Program {
    let range = (i32::MIN.into(), i32::MAX.into());
    let condition = Condition::Integer(0, Test::Less, 4, range);
    Program { names: vec![b"level".to_vec()], condition }
}

fn fields<'a>(
    topic: &'a str,
    offset: &'a str,
    count: &'a str,
    flags: &'a str,
) -> [(&'a str, &'a str); 11] {
    [
        ("consumerGroup", "g"),
        ("topic", topic),
        ("queueId", "0"),
        ("queueOffset", offset),
        ("maxMsgNums", count),
        ("sysFlag", flags),
        ("commitOffset", offset),
        ("suspendTimeoutMillis", "15000"),
        ("subscription", "*"),
        ("subVersion", "0"),
        ("expressionType", "TAG"),
    ]
}

fn head(is_binary: bool, fields: &[(&str, &str)]) -> Vec<u8> {
    if is_binary { binary_head(11, fields) } else { json_head(11, fields) }
}

/// Runs a series of inputs and returns the counters; panics on wrong answers.
///
/// # Panics
///
/// If an answer differs from the result of a plain search.
#[must_use]
pub fn run(seed: u64, frames: u64) -> Seen {
    let mut random = Random::new(seed);
    let mut world = World::new(&mut random);
    let mut pulls = Pulls::default();
    readers(&mut pulls);
    renewals(&mut pulls);
    let template = Template {
        json: ["{\"a\":\"", "\",\"b\":\"", "\",\"c\":\"", "\",\"d\":\"", "\"},\"n\":", "}"]
            .map(Vec::from)
            .into(),
        binary_head: [0; 5],
        flag: 1,
        remark: b"FOUND".to_vec(),
        names: ["a", "b", "c", "d"].map(Vec::from),
        entries: vec![],
    };
    let mut caches = Caches::new(1 << 20);
    let mut so_far = Seen::default();
    let mut chunk = vec![];
    while so_far.frames < frames {
        if random.below(300) == 0 {
            world.disturb(&mut random);
            caches = Caches::new(1 << (12 + random.below(10)));
        }
        chunk.clear();
        for _ in 0..=random.below(CHUNK_FRAMES_MAX) {
            so_far.frames += 1;
            push_frame(&mut chunk, &mut random);
        }
        mutate(&mut chunk, &mut random);
        let whole_count = pulls.stage_chunk(&chunk, 3, 1 << 16);
        pulls.staged.clear();
        let (mut at, mut frame_count) = (0, 0);
        while let Next::Whole(frame) = frame_at(&chunk, at, 1 << 16) {
            pulls.stage(&chunk, &frame);
            at = frame.end;
            frame_count += 1;
        }
        let is_whole = at == chunk.len() && pulls.staged.len() == frame_count && frame_count <= 3;
        assert_eq!(whole_count, if is_whole { frame_count } else { 0 });
        so_far.staged += check(&mut world, &pulls, &chunk, &mut caches, &template);
    }
    so_far
}

/// Answers the staged pulls; returns how many were answered.
fn check(
    world: &mut World,
    pulls: &Pulls,
    chunk: &[u8],
    caches: &mut Caches,
    template: &Template<4>,
) -> u64 {
    let mut answered = 0;
    for staged in &pulls.staged {
        let pull = match staged {
            Staged::Pull(pull) => pull,
            Staged::Renewal(renewal) => {
                let known = LOCKS[renewal.number as usize];
                assert_eq!(pulls.renewals.answer(renewal.number), Some(known));
                assert!(chunk[..renewal.end].ends_with(known));
                answered += 1;
                continue;
            }
        };
        let reader = &pulls.readers[pull.reader as usize];
        let (queue, view) = (world.queue(), world.view.clone());
        let (mut out, mut budget) = (BEFORE.to_vec(), 1 << 40);
        let context = Context { queue, topic: b"T", log: &view, limits: LIMITS, source: world };
        let rooms = (&mut out, &mut budget);
        let Some(found) = answer(pull, reader, context, caches, template, rooms) else {
            assert_eq!(out, BEFORE, "nothing is appended for Python");
            continue;
        };
        answered += 1;
        assert!(out.starts_with(BEFORE));
        let Next::Whole(frame) = frame_at(&out, BEFORE.len(), 1 << 16) else {
            panic!("an answer is one frame");
        };
        assert_eq!(frame.end, out.len());
        let body = &out[frame.body..];
        assert_eq!((frame.serialization, body.len()), (pull.serialization, found.bytes));
        assert_eq!(next_offset(&frame, &out), found.next_offset);
        let count_max = i64::from(pull.asked.count_max.max(1)).min(LIMITS.count_max);
        let expected = match &reader.filter {
            Filter::All => world.expected(pull.asked.queue_offset, count_max, |_, _| true),
            Filter::Tags(_) => {
                world.expected(pull.asked.queue_offset, count_max, |tag, _| tag != 1)
            }
            Filter::Sql(_) => {
                world.expected(pull.asked.queue_offset, count_max, |_, level| level < 4)
            }
        };
        assert_eq!(body, expected);
        assert!(found.next_offset > pull.asked.queue_offset && found.next_offset <= RECORDS);
        let mut at = 0;
        for _ in 0..found.count {
            let record = &body[at..];
            let topic = 88 + be32(record, 84) as usize;
            assert_eq!((be32(record, 12), &record[topic..topic + 2]), (0, &b"\x01T"[..]));
            at += be32(record, 0) as usize;
        }
        assert_eq!(at, body.len(), "undamaged records fill the answer");
    }
    answered
}

/// Reads the second number of an answer's header.
fn next_offset(frame: &Frame, out: &[u8]) -> i64 {
    let head = frame.head(out);
    let (name, end): (&[u8], u8) =
        if frame.serialization == 1 { (b"\0\x01b\0\0\0", b'\0') } else { (b"\"b\":\"", b'"') };
    let at = head.windows(name.len()).position(|part| part == name).expect("a next offset");
    // ROCKETMQ: the last byte of the number's length comes first.
    let digits = &head[at + name.len() + usize::from(frame.serialization == 1)..];
    let count = digits.iter().position(|&byte| byte == end).expect("an end");
    std::str::from_utf8(&digits[..count]).unwrap().parse().expect("a number")
}

fn push_frame(chunk: &mut Vec<u8>, random: &mut Random) {
    if random.below(4) == 0 {
        let is_binary = random.below(2) == 0;
        let head = if is_binary { binary_head(41, &[]) } else { json_head(41, &[]) };
        push(chunk, u32::from(is_binary), &head, random.pick(&LOCKS));
        return;
    }
    let topic = random.pick(&["all", "tags", "sql", "sql", "unknown"]);
    let count = random.pick(&["32", "32", "1", "7", "0", "1000"]);
    let flags = random.pick(&["4", "5", "6", "4", "8", "0"]);
    let offset = random.below(3200).to_string();
    let head = head(random.below(2) == 0, &fields(topic, &offset, count, flags));
    // The serialization is that of the header, or not.
    let serialization = u32::from(head[0] == 0) ^ u32::from(random.below(50) == 0);
    push(chunk, serialization, &head, b"");
}

fn push(chunk: &mut Vec<u8>, serialization: u32, head: &[u8], body: &[u8]) {
    chunk.extend_from_slice(&((4 + head.len() + body.len()) as u32).to_be_bytes());
    chunk.extend_from_slice(&(serialization << 24 | head.len() as u32).to_be_bytes());
    chunk.extend_from_slice(head);
    chunk.extend_from_slice(body);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mutated_pulls_never_panic_and_many_are_answered() {
        let seen = run(1, 100_000);
        assert!(seen.staged > seen.frames / 15, "{seen:?}");
    }
}
