// SPDX-License-Identifier: Apache-2.0
//! Fuzz test of staging, building and answering sends: nothing may panic, and accepted sends must
//! be consistent. The same seed produces the same inputs.

use cometmq_accel::answers::Template;
use cometmq_accel::commit::Place;
use cometmq_accel::frames::{Next, frame_at};
use cometmq_accel::halves::Transactions;
use cometmq_accel::host::Host;
use cometmq_accel::pull::{self, answer::PlainTemplate};
use cometmq_accel::scan::be32;
use cometmq_accel::send_back_header::{BackGroup, Backs};
use cometmq_accel::shapes::{ReadSend, Shapes};
use cometmq_accel::stage::{Limits, Origin, Stage};
use cometmq_accel::text::hex_host;

use crate::input::{Random, Seen, binary_head, json_head, mutate};

const HOST: Host = Host::V6([0x2a; 20]);
const PEERS: [Host; 2] = [Host::V4([10, 0, 0, 1, 0, 0, 0x2a, 0x9f]), Host::V6([1; 20])];
const LOG_START: i64 = 4096;
const CHUNK_FRAMES_MAX: u32 = 6;
/// Position of the last byte of the flag in a binary header.
const BINARY_FLAG_AT: usize = 12;

/// Runs a series of inputs and returns the counters; panics on inconsistent results.
///
/// # Panics
///
/// If an accepted send is inconsistent.
#[must_use]
pub fn run(seed: u64, frames: u64) -> Seen {
    let mut random = Random::new(seed);
    let mut stage = Stage::new(
        Limits {
            frame_bytes_max: 1 << 16,
            body_bytes_max: 600,
            batch_count_max: 8,
            request_bytes_max: 1400,
        },
        HOST,
        b"CLUSTER\x01c",
    );
    let template = Template {
        fields: pull::answer::Template {
            json: ["{\"a\":\"", "\",\"q\":\"", "\",\"o\":\"", "\"},\"n\":", "}"]
                .map(Vec::from)
                .into(),
            binary_head: [0; 5],
            flag: 1,
            remark: vec![],
            names: ["msgId", "queueId", "queueOffset"].map(Vec::from),
            entries: vec![],
        },
        host: hex_host(&HOST),
        plain: PlainTemplate::default(),
    };
    stage.delay_in(b"Delayed", vec![1_000, 5_000]);
    let mut transactions = Transactions::new(b"Half", b"Op", b"TAGS\x01d", 100);
    transactions.takes_halves = true;
    stage.transactions = Some(transactions);
    let (mut halves, mut log) = (vec![], vec![]);
    let (mut so_far, mut shapes) = (Seen::default(), Shapes::default());
    let mut chunk = vec![];
    while so_far.frames < frames {
        if random.below(64) == 0 {
            stage.forget();
        }
        let _ = stage.learn(b"Orders", 4);
        let _ = stage.learn(b"T", 1);
        let (topic, count_max) = (b"%RETRY%g".to_vec(), 16);
        stage.learn_back(b"g", BackGroup { topic, queue_count: 3, count_max, version_min: 1 });
        chunk.clear();
        for _ in 0..=random.below(CHUNK_FRAMES_MAX) {
            so_far.frames += 1;
            match halves.pop().filter(|_| random.below(2) == 0) {
                Some(half) => push_end(&mut chunk, half, &mut random),
                None if random.below(8) == 0 => push_back(&mut chunk, &log, &mut random),
                None => push_frame(&mut chunk, &mut random),
            }
        }
        mutate(&mut chunk, &mut random);
        check_shapes(&mut shapes, &chunk);
        let peer = PEERS[random.below(2) as usize];
        if !log.is_empty() {
            let at = random.below(log.len() as u32) as usize;
            log[at] ^= u8::from(random.below(2) == 0) << random.below(8);
        }
        let (staged, ended, sent_back) =
            check(&mut stage, &chunk, peer, &template, &mut halves, &mut log);
        so_far.staged += staged;
        so_far.ended += ended;
        so_far.sent_back += sent_back;
    }
    so_far
}

/// Checks that a header is read equally with and without shapes, and so is its signed content.
fn check_shapes(shapes: &mut Shapes, chunk: &[u8]) {
    let (mut send, mut at) = (ReadSend::default(), 0);
    while let Next::Whole(frame) = frame_at(chunk, at, 1 << 16) {
        at = frame.end;
        let is_read = shapes.read(&mut send, &frame, chunk, true).is_some();
        let mut wanted = ReadSend::default();
        let is_plain = Shapes::default().read(&mut wanted, &frame, chunk, true).is_some();
        assert_eq!(is_read, is_plain, "{}", String::from_utf8_lossy(frame.head(chunk)));
        assert!(!is_read || send == wanted, "{send:?} {wanted:?}");
    }
}

/// Stages, builds and answers a chunk. Returns the number of staged requests, and how many of them
/// end a half message or send a message back.
///
/// `halves` receives the physical offset and the queue offset of the half messages that are stored,
/// and `log` the records, which later requests may send back.
fn check(
    stage: &mut Stage,
    chunk: &[u8],
    peer: Host,
    template: &Template,
    halves: &mut Vec<(i64, i64)>,
    log: &mut Vec<u8>,
) -> (u64, u64, u64) {
    let read = &mut |offset: i64| {
        let rest = log.get(usize::try_from(offset - LOG_START).ok()?..)?;
        let size = be32(rest.get(..4)?, 0) as usize;
        Some(rest.get(..size)?.to_vec())
    };
    let backs = Backs { count: u64::MAX, read };
    let parts = stage.stage(
        chunk,
        Some(Origin { chunk: 0, peer: 0, host: peer, now_ms: Some(7) }),
        None,
        Some(backs),
        100,
    );
    let mut end = 0;
    for part in &parts {
        assert!(part.start == end && part.end > part.start, "parts follow one another");
        end = part.end;
    }
    assert!(end <= chunk.len());
    let count = stage.requests.len();
    assert_eq!(parts.iter().map(|part| part.count).sum::<usize>(), count);
    let place = Place { offset: LOG_START, file_end: 1 << 30, now_ms: 1_700_000_000_000 };
    let (fitting, bytes) = stage.fit(0, count, place);
    assert_eq!(fitting, count);
    let mut open = stage.open_queues(0, count);
    let mut out = vec![0; bytes];
    let built = stage.build(0..count, &[chunk], place, &mut open, &mut out);
    stage.close_queues(&open);
    let mut at = 0;
    for _ in 0..built.message_count {
        let size = be32(&out, at) as usize;
        assert_eq!(u64::from(be32(&out, at + 32)), LOG_START as u64 + at as u64);
        at += size;
    }
    assert_eq!(at, bytes, "records fill the commit");
    let entries: usize = open.iter().map(|queue| queue.entries.len()).sum();
    assert_eq!(entries, 20 * built.message_count);
    assert_eq!(built.keys.hashes.len(), built.keys.offsets.len());
    assert!(built.keys.hashes.iter().all(|&hash| hash >= 0));
    let mut frames = vec![];
    halves.clear();
    let (mut ended, mut sent_back) = (0, 0);
    for (_, mut answers) in built.groups {
        assert!(answers.halves.len() <= answers.half_count);
        for half in answers.halves.drain(..) {
            halves.push((half.offset, half.queue_offset));
            if let Some(transactions) = &mut stage.transactions {
                transactions.keep(half);
            }
        }
        ended += answers.ends.len() as u64;
        sent_back += answers.rows.iter().filter(|row| row.back.is_some()).count() as u64;
        for row in &answers.rows {
            let start = frames.len();
            template.push(&mut frames, row, &answers.places[row.places.clone()]);
            let length = be32(&frames, start) as usize;
            assert_eq!(start + 4 + length, frames.len(), "an answer is one frame");
        }
    }
    stage.release();
    if !out.is_empty() {
        *log = out;
    }
    (count as u64, ended, sent_back)
}

/// Appends a request that ends a half message.
fn push_end(chunk: &mut Vec<u8>, half: (i64, i64), random: &mut Random) {
    let is_binary = random.below(2) == 0;
    let (offset, queue_offset) = (half.0.to_string(), half.1.to_string());
    let fields = [
        ("producerGroup", random.pick(&["g", "g", "g", "other"])),
        ("tranStateTableOffset", &queue_offset),
        ("commitLogOffset", &offset),
        ("commitOrRollback", random.pick(&["8", "8", "12", "0"])),
        ("fromTransactionCheck", "false"),
        ("msgId", "0A0B"),
    ];
    let head = if is_binary {
        let mut head = binary_head(37, &fields);
        head[BINARY_FLAG_AT] = 2;
        head
    } else {
        let head = String::from_utf8(json_head(37, &fields)).unwrap_or_default();
        head.replace("\"flag\":0", "\"flag\":2").into_bytes()
    };
    let word = u32::from(is_binary) << 24 | head.len() as u32;
    chunk.extend_from_slice(&((4 + head.len()) as u32).to_be_bytes());
    chunk.extend_from_slice(&word.to_be_bytes());
    chunk.extend_from_slice(&head);
}

/// Appends a request that sends a message back.
fn push_back(chunk: &mut Vec<u8>, log: &[u8], random: &mut Random) {
    let (mut at, count) = (0, random.below(3));
    for _ in 0..count {
        let size = log.get(at..at + 4).map_or(0, |size| be32(size, 0) as usize);
        at += if size < log.len() - at { size } else { 0 };
    }
    let offset = (LOG_START as usize + at).to_string();
    let fields = [
        ("offset", offset.as_str()),
        ("group", random.pick(&["g", "g", "g", "other"])),
        ("delayLevel", random.pick(&["0", "0", "1", "99", "-1"])),
        ("originMsgId", "0A0B"),
        ("maxReconsumeTimes", random.pick(&["16", "1", "0"])),
    ];
    let is_binary = random.below(2) == 0;
    let head = if is_binary { binary_head(36, &fields) } else { json_head(36, &fields) };
    let word = u32::from(is_binary) << 24 | head.len() as u32;
    chunk.extend_from_slice(&((4 + head.len()) as u32).to_be_bytes());
    chunk.extend_from_slice(&word.to_be_bytes());
    chunk.extend_from_slice(&head);
}

fn push_frame(chunk: &mut Vec<u8>, random: &mut Random) {
    let is_binary = random.below(2) == 0;
    let code: u16 = *random.pick(&[&310, &310, &310, &320, &10]);
    let topic = random.pick(&["Orders", "Orders", "Orders", "T", "Orders", "%RETRY%g", "unknown"]);
    let queue = random.pick(&["0", "0", "0", "0", "0", "0", "3", "4", "-1", "00"]);
    let text = random.pick(&[
        "UNIQ_KEY\u{1}0A00\u{2}WAIT\u{1}true",
        "TAGS\u{1}a\u{2}KEYS\u{1}k1 k2\u{2}x\u{1}ü\"\\\n",
        "UNIQ_KEY\u{1}0A01\u{2}",
        "",
        "DELAY\u{1}3",
        "TRAN_MSG\u{1}true\u{2}PGROUP\u{1}g\u{2}KEYS\u{1}k",
        "UNIQ_KEY\u{1}0A00\u{2}PGROUP\u{1}g\u{2}TRAN_MSG\u{1}true\u{2}WAIT\u{1}true",
        "\u{2}\u{2}\u{1}\u{1}",
    ]);
    let batch = if code == 320 { "true" } else { "false" };
    let fields = [
        ("a", "g"),
        ("b", topic),
        ("c", "TBW102"),
        ("d", "4"),
        ("e", queue),
        ("f", random.pick(&["0", "0", "1", "0", "4"])),
        ("g", "1700000000000"),
        ("h", "0"),
        ("i", text),
        ("j", "0"),
        ("k", "false"),
        ("m", batch),
    ];
    let head = if is_binary { binary_head(code, &fields) } else { json_head(code, &fields) };
    let mut body = vec![b'x'; random.below(200) as usize];
    if code == 320 {
        body.clear();
        for _ in 0..random.below(4) {
            push_item(&mut body, random);
        }
    }
    let word = u32::from(is_binary) << 24 | head.len() as u32;
    chunk.extend_from_slice(&((4 + head.len() + body.len()) as u32).to_be_bytes());
    chunk.extend_from_slice(&word.to_be_bytes());
    chunk.extend_from_slice(&head);
    chunk.extend_from_slice(&body);
}

fn push_item(body: &mut Vec<u8>, random: &mut Random) {
    let payload = vec![b'y'; random.below(60) as usize];
    let text = random.pick(&["UNIQ_KEY\u{1}0B", "", "TAGS\u{1}t\u{2}"]);
    body.extend_from_slice(&[0; 16]);
    body.extend_from_slice(&(payload.len() as u32).to_be_bytes());
    body.extend_from_slice(&payload);
    body.extend_from_slice(&(text.len() as u16).to_be_bytes());
    body.extend_from_slice(text.as_bytes());
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mutated_sends_never_panic_and_many_are_staged() {
        let seen = run(1, 300_000);
        assert!(seen.staged > seen.frames / 8, "{seen:?}");
        // Half messages that leave too little room for their commit are left to Python.
        assert!(seen.ended > seen.frames / 1000, "{seen:?}");
        assert!(seen.sent_back > seen.frames / 200, "{seen:?}");
    }
}
