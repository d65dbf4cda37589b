// SPDX-License-Identifier: Apache-2.0
//! Fuzz test of reading ranges of the log and delivering their records: nothing may panic, and the
//! results must not depend on where a range is cut. The same seed produces the same inputs.

use cometmq_accel::commit::Place;
use cometmq_accel::due::{Selection, Times, select};
use cometmq_accel::host::Host;
use cometmq_accel::range::{Found, Rules, follow, parse, read};
use cometmq_accel::scan::be32;
use cometmq_accel::stage::{Limits, Stage};

use crate::input::{Random, Seen, mutate};

const RECORDS_MAX: u32 = 8;

/// Runs a series of inputs and returns how many records were generated and read.
///
/// # Panics
///
/// If a result is inconsistent.
#[must_use]
pub fn run(seed: u64, records: u64) -> Seen {
    let mut random = Random::new(seed);
    let mut so_far = Seen::default();
    let mut data = vec![];
    while so_far.frames < records {
        let offset = *random.pick(&[&0, &4096, &-1, &(i64::MAX - 300)]);
        data.clear();
        for number in 0..=random.below(RECORDS_MAX) {
            so_far.frames += 1;
            push_record(&mut data, offset, i64::from(number), &mut random);
        }
        mutate(&mut data, &mut random);
        let rules = Rules {
            check_crc: random.below(4) == 0,
            is_indexing: random.below(4) > 0,
            delayed_topic: b"Delayed",
            delays_ms: &[1_000, i64::MAX],
            other_delay_ms: 5,
        };
        so_far.staged += check(&data, offset, &rules);
        so_far.delivered += check_due(&data, offset, &mut random) as u64;
    }
    so_far
}

/// Delivers the records of a range by means of entries that may be wrong.
fn check_due(data: &[u8], base: i64, random: &mut Random) -> usize {
    let (mut entries, mut at) = (vec![], 0);
    while at + 4 <= data.len() && entries.len() < 20 * RECORDS_MAX as usize {
        let size = be32(data, at);
        entries.extend_from_slice(&base.wrapping_add(at as i64).to_be_bytes());
        entries.extend_from_slice(&size.to_be_bytes());
        entries.extend_from_slice(&i64::from(random.below(20)).to_be_bytes());
        at += size.max(91) as usize;
    }
    if random.below(4) == 0 && !entries.is_empty() {
        mutate(&mut entries, random);
    }
    let times = Times { now_ms: 18, due_at_most: 1_018, copied_until: 0 };
    let mut chosen = select(&entries, times, 1 << 30, 1 + random.below(900) as usize);
    let part = |&(offset, size): &(i64, usize)| {
        let start = usize::try_from(offset.checked_sub(base)?).ok()?;
        data.get(start..start.checked_add(size)?)
    };
    let spans: Vec<&[u8]> = chosen.spans.iter().map_while(part).collect();
    chosen.spans.truncate(spans.len());
    let limits = Limits {
        frame_bytes_max: 0,
        body_bytes_max: 50,
        batch_count_max: 0,
        request_bytes_max: 400,
    };
    let mut stage = Stage::new(limits, Host::V4([9; 8]), b"");
    let count = stage.stage_due(&entries, &chosen, &spans, &[b"Delayed"], 0);
    assert!(count <= chosen.count && count == stage.requests.len());
    check_copies(&mut stage, &chosen, &spans);
    count
}

fn check_copies(stage: &mut Stage, chosen: &Selection, spans: &[&[u8]]) {
    let place = Place { offset: 1 << 20, file_end: 1 << 30, now_ms: 1_700_000_000_000 };
    let count = stage.requests.len();
    let (fitting, bytes) = stage.fit(0, count, place);
    assert_eq!(fitting, count);
    let mut open = stage.open_queues(0, count);
    let mut out = vec![0; bytes];
    let built = stage.build(0..count, spans, place, &mut open, &mut out);
    stage.close_queues(&open);
    let rules = Rules {
        check_crc: false, // the texts of the originals may be wrong
        is_indexing: true,
        delayed_topic: b"Delayed",
        delays_ms: &[],
        other_delay_ms: 0,
    };
    let copies = read(&out, place.offset, &rules);
    let mut at = 0;
    while let Some(copy) =
        out.get(at..).and_then(|rest| parse(rest, place.offset + at as i64, true))
    {
        at += copy.size;
    }
    assert_eq!(at, bytes, "the bodies of copies match their CRCs");
    assert_eq!((copies.count, copies.size), (count, bytes), "copies are plain records");
    assert_eq!(copies.keys.hashes, built.keys.hashes);
    assert!(chosen.spans.len() == spans.len());
}

fn check(data: &[u8], offset: i64, rules: &Rules) -> u64 {
    let whole = read(data, offset, rules);
    let (mut at, mut queued) = (0, 0);
    for number in 0..whole.count {
        let size = be32(data, at) as usize;
        let rest = read(&data[at..], offset + at as i64, rules).count;
        assert_eq!(read(&data[..at], offset, rules).count, number, "a cut loses no record");
        assert_eq!(rest, whole.count - number, "reading may begin at every border");
        queued += usize::from(be32(data, at + 36) & 4 == 0);
        at += size;
    }
    assert_eq!(at, whole.size, "records follow one another");
    if let Some((size, next)) = follow(data, offset, 1 << 30, data.len()) {
        assert!(size <= data.len() && (next == 0 || size + next > data.len()));
        assert!(size >= at || !(0..1 << 30).contains(&offset), "what is read is whole");
    }
    for run in &whole.runs {
        assert_eq!((run.end - run.first) as usize * 20, run.entries.len());
        assert!(!run.entries.is_empty());
    }
    let entries = |found: &Found| found.runs.iter().map(|run| run.entries.len()).sum::<usize>();
    assert_eq!(entries(&whole), 20 * queued);
    let keys = &whole.keys;
    assert_eq!(keys.hashes.len(), keys.offsets.len());
    assert_eq!(keys.times.last().map_or(0, |&(end, _)| end), keys.hashes.len());
    assert!(keys.hashes.iter().all(|&hash| hash >= 0));
    assert!(keys.offsets.is_sorted(), "keys have the order of the log");
    whole.count as u64
}

fn push_record(data: &mut Vec<u8>, base: i64, number: i64, random: &mut Random) {
    let offset = base.wrapping_add(data.len() as i64);
    let topics =
        if random.below(12) == 0 { ["a/b", "..", ""] } else { ["Orders", "Delayed", "ünï"] };
    let topic = topics[random.below(3) as usize];
    let last = if random.below(4) == 0 { "torn\0" } else { "x\u{1}y" };
    let text = random.pick(&[
        "UNIQ_KEY\u{1}0A00\u{2}TAGS\u{1}a",
        "TAGS\u{1}\u{2}KEYS\u{1}k1  k2 \u{2}x\u{1}y",
        "TAGS\u{1}ü\u{2}KEYS\u{1}ключ",
        "",
        "\u{2}\u{1}\u{2}KEYS\u{1}",
        "UNIQ_KEY\u{1}0A01\u{2}REAL_TOPIC\u{1}Orders\u{2}REAL_QID\u{1}3",
        "REAL_TOPIC\u{1}Delayed\u{2}REAL_QID\u{1}1",
        "REAL_QID\u{1}77\u{2}KEYS\u{1}a b\u{2}REAL_TOPIC\u{1}%RETRY%g",
        "REAL_QID\u{1}-1\u{2}REAL_TOPIC\u{1}T",
        last,
    ]);
    let body = vec![b'x'; random.below(60) as usize];
    let sys_flag = *random.pick(&[&0u32, &0, &0, &4, &8, &12, &0x10, &0x30]);
    let is_long = random.below(8) == 0;
    let start = data.len();
    data.extend_from_slice(&[0; 4]);
    data.extend_from_slice(&[0xDA, 0xA3, 0x20, if is_long { 0xAB } else { 0xA7 }]);
    data.extend_from_slice(&(crc32fast::hash(&body) & 0x7FFF_FFFF).to_be_bytes());
    data.extend_from_slice(&random.below(3).to_be_bytes());
    data.extend_from_slice(&[0; 4]);
    let queue_offset = *random.pick(&[&number, &number, &0, &-1, &i64::MAX]);
    data.extend_from_slice(&queue_offset.to_be_bytes());
    data.extend_from_slice(&offset.to_be_bytes());
    data.extend_from_slice(&sys_flag.to_be_bytes());
    data.extend_from_slice(&[0; 8]);
    data.resize(data.len() + if sys_flag & 0x10 == 0 { 8 } else { 20 }, 1);
    data.extend_from_slice(&(1_700_000_000_000 + i64::from(random.below(3))).to_be_bytes());
    data.resize(data.len() + if sys_flag & 0x20 == 0 { 8 } else { 20 }, 2);
    data.extend_from_slice(&[0; 12]);
    data.extend_from_slice(&(body.len() as u32).to_be_bytes());
    data.extend_from_slice(&body);
    if is_long {
        data.push(0);
    }
    data.push(topic.len() as u8);
    data.extend_from_slice(topic.as_bytes());
    data.extend_from_slice(&(text.len() as u16).to_be_bytes());
    data.extend_from_slice(text.as_bytes());
    let size = (data.len() - start) as u32;
    data[start..start + 4].copy_from_slice(&size.to_be_bytes());
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mutated_ranges_never_panic_and_many_records_are_read() {
        let seen = run(1, 300_000);
        assert!(seen.staged > seen.frames / 8, "{seen:?}");
        assert!(seen.delivered > seen.frames / 200, "{seen:?}");
    }
}
