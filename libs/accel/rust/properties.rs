// SPDX-License-Identifier: Apache-2.0
//! Properties of plain sends: the text to store, the tag code and the hashes of the keys.
//!
//! This is the native version of `cometmq.broker.messages.read_sent`, for texts whose tags and keys
//! are ASCII.

use crate::scan::{decimal32, find};

/// Separates the pairs of a property text.
pub const PAIR_SEPARATOR: u8 = 2;
pub(crate) const VALUE_SEPARATOR: u8 = 1;

/// What the broker reads from the properties of a send, apart from the pairs to store.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sent<'a> {
    /// Tag code for the consume queue; 0 if the message has no tags.
    pub tag_code: i64,
    /// The value of WAIT, if the text has one.
    pub wait: Option<&'a [u8]>,
    /// Delay level that the sender requested; 0 for none.
    pub level: u16,
    /// Whether this is a half message.
    pub is_half: bool,
}

/// The hash with which the index hashes of a message begin: that of `topic#`, for the topic in
/// which it is stored.
#[derive(Clone, Copy)]
pub struct TopicHashes {
    /// For a plain message.
    pub plain: u32,
    /// For a delayed message, if delayed messages are accepted.
    pub delayed: Option<u32>,
    /// For a half message, if half messages are accepted.
    pub half: Option<u32>,
}

/// The properties of a half message that a commit needs.
pub struct HalfTarget<'a> {
    /// Real topic.
    pub topic: &'a [u8],
    /// Real queue.
    pub queue_id: i32,
    /// Producer group.
    pub group: &'a [u8],
}

impl Sent<'_> {
    /// Returns whether the sender waits for flush and replicas; `RocketMQ`'s default is true.
    #[must_use]
    pub fn waits(&self) -> bool {
        self.wait.is_none_or(|value| value.eq_ignore_ascii_case(b"true"))
    }
}

#[derive(Default)]
struct Found<'a> {
    unique_key: &'a [u8],
    keys: &'a [u8],
    tags: &'a [u8],
    wait: Option<&'a [u8]>,
    level: Option<&'a [u8]>,
    half: Option<&'a [u8]>,
    group: &'a [u8],
    topic: &'a [u8],
    queue_id: &'a [u8],
    has_timer: bool,
}

/// Calls `keep` with each pair that must be stored.
fn read_pairs<'a>(raw: &'a [u8], mut keep: impl FnMut(&'a [u8])) -> Found<'a> {
    let mut found = Found::default();
    let mut rest = raw;
    while !rest.is_empty() {
        let pair = &rest[..find(rest, PAIR_SEPARATOR).unwrap_or(rest.len())];
        rest = rest.get(pair.len() + 1..).unwrap_or_default();
        let Some(cut) = find(pair, VALUE_SEPARATOR) else {
            continue;
        };
        let (name, value) = (&pair[..cut], &pair[cut + 1..]);
        if name.is_empty() || value.is_empty() || name == b"CLUSTER" {
            continue;
        }
        match name {
            b"WAIT" => {
                found.wait = Some(value);
                continue;
            }
            b"UNIQ_KEY" => found.unique_key = value,
            b"TAGS" => found.tags = value,
            b"KEYS" => found.keys = value,
            b"DELAY" => found.level = Some(value),
            b"TRAN_MSG" => found.half = Some(value),
            b"PGROUP" => found.group = value,
            b"REAL_TOPIC" => found.topic = value,
            b"REAL_QID" => found.queue_id = value,
            _ => found.has_timer |= name.starts_with(b"TIMER_"),
        }
        keep(pair);
    }
    found
}

/// Reads the properties of a request; appends the text to store to `out`, and the hashes of the
/// keys to `hashes`.
///
/// Returns `None` for delays and half messages in an unusual form, for delivery times, and for tags
/// and keys outside ASCII. Both vectors may have grown in that case.
pub fn read_sent<'a>(
    raw: &'a [u8],
    cluster: &[u8],
    topic_hashes: TopicHashes,
    out: &mut Vec<u8>,
    hashes: &mut Vec<i32>,
) -> Option<Sent<'a>> {
    let found = read_pairs(raw, |pair| {
        out.extend_from_slice(pair);
        out.push(PAIR_SEPARATOR);
    });
    if found.has_timer {
        return None;
    }
    out.extend_from_slice(cluster);
    let level = found.level.map_or(Some(0), read_level)?;
    let has_target = !(found.topic.is_empty() && found.queue_id.is_empty());
    let topic_hash = match found.half {
        None if level == 0 => topic_hashes.plain,
        None if !has_target => topic_hashes.delayed?,
        // A delay would have to be removed, and old names of the real queue as well.
        Some(b"true") if found.level.is_none() && !has_target && !found.group.is_empty() => {
            topic_hashes.half?
        }
        _ => return None,
    };
    let tag_code = index(&found, topic_hash, hashes)?;
    Some(Sent { tag_code, wait: found.wait, level, is_half: found.half.is_some() })
}

/// Reads the stored properties of a half message.
#[must_use]
pub fn read_half(text: &[u8]) -> Option<HalfTarget<'_>> {
    let found = read_pairs(text, |_| ());
    Some(HalfTarget {
        topic: found.topic,
        queue_id: decimal32(found.queue_id)?,
        group: found.group,
    })
}

/// Returns the last value of a name in a property text; empty if there is none.
///
/// `name` ends with the separator of names and values.
#[must_use]
pub(crate) fn last_value<'a>(text: &'a [u8], name: &[u8]) -> &'a [u8] {
    let values = text.split(|&byte| byte == PAIR_SEPARATOR).rev();
    values.filter_map(|pair| pair.strip_prefix(name)).find(|value| !value.is_empty()).unwrap_or(b"")
}

/// The property with the delivery time of a timed message.
pub(crate) const TIME_NAME: &[u8] = b"TIMER_OUT_MS\x01";
const TIME_DIGITS_MAX: usize = 18;

/// Returns a delivery time, as `timed_ms` in `cometmq.remoting` does.
#[must_use]
pub(crate) fn read_time(text: &[u8]) -> Option<i64> {
    let is_number = text.len() <= TIME_DIGITS_MAX && text.iter().all(u8::is_ascii_digit);
    str::from_utf8(text).ok().filter(|_| is_number)?.parse().ok()
}

fn read_level(text: &[u8]) -> Option<u16> {
    let is_plain = text.len() <= 4 && text.iter().all(u8::is_ascii_digit);
    str::from_utf8(text).ok().filter(|_| is_plain)?.parse().ok()
}

/// Reads the properties of one message of a batch, which are stored unchanged; returns the tag
/// code.
pub fn read_item(raw: &[u8], topic_hash: u32, hashes: &mut Vec<i32>) -> Option<i64> {
    let found = read_pairs(raw, |_| ());
    if found.has_timer { None } else { index(&found, topic_hash, hashes) }
}

fn index(found: &Found, topic_hash: u32, hashes: &mut Vec<i32>) -> Option<i64> {
    if !(found.unique_key.is_ascii() && found.keys.is_ascii() && found.tags.is_ascii()) {
        return None;
    }
    if !found.unique_key.is_empty() {
        hashes.push(index_hash(topic_hash, found.unique_key));
    }
    let keys = found.keys.split(|&byte| byte == b' ').filter(|key| !key.is_empty());
    hashes.extend(keys.map(|key| index_hash(topic_hash, key)));
    Some(i64::from(java_hash(0, found.tags).cast_signed()))
}

/// Continues `String.hashCode()` over ASCII text.
#[must_use]
pub fn java_hash(start: u32, text: &[u8]) -> u32 {
    let (mut hash, mut rest) = (start, text);
    // The sum over four bytes does not wait for the hash before.
    while let Some((&[a, b, c, d], tail)) = rest.split_first_chunk() {
        let [a, b, c, d] = [a, b, c, d].map(u32::from);
        let sum = 31 * (31 * (31 * a + b) + c) + d;
        hash = hash.wrapping_mul(31 * 31 * 31 * 31).wrapping_add(sum);
        rest = tail;
    }
    rest.iter().fold(hash, |hash, &byte| hash.wrapping_mul(31).wrapping_add(u32::from(byte)))
}

/// Continues `String.hashCode()` over any text, by its UTF-16 code units.
#[must_use]
pub fn java_hash_text(start: u32, text: &str) -> u32 {
    if text.is_ascii() {
        return java_hash(start, text.as_bytes());
    }
    let step = |hash: u32, unit| hash.wrapping_mul(31).wrapping_add(u32::from(unit));
    text.encode_utf16().fold(start, step)
}

/// Returns the hash of `topic#key` in the index; `topic_hash` is the hash of `topic#`.
#[must_use]
pub fn index_hash(topic_hash: u32, key: &[u8]) -> i32 {
    positive(java_hash(topic_hash, key))
}

/// Returns the same hash as `index_hash`, for any text.
#[must_use]
pub fn index_hash_text(topic_hash: u32, key: &str) -> i32 {
    positive(java_hash_text(topic_hash, key))
}

/// Returns the absolute value as Java does, with 0 for -2**31, which has none.
fn positive(hash: u32) -> i32 {
    hash.cast_signed().checked_abs().unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    const TOPIC: TopicHashes = TopicHashes { plain: 1, delayed: Some(2), half: Some(3) };

    /// The tag code, whether the sender of a plain message waits, its level, the text to store, and
    /// the hashes of the keys.
    type Facts = (i64, Option<bool>, u16, String, Vec<i32>);

    /// Reads pairs written as `name=value;`.
    fn read(text: &str, hashes: TopicHashes) -> Option<Facts> {
        let (mut out, mut found) = (vec![], vec![]);
        let raw = text.replace('=', "\x01").replace(';', "\x02");
        let sent = read_sent(raw.as_bytes(), b"CLUSTER\x01c", hashes, &mut out, &mut found)?;
        let out = String::from_utf8(out).ok()?.replace('\x01', "=").replace('\x02', ";");
        let waits = (!sent.is_half).then_some(sent.waits());
        Some((sent.tag_code, waits, sent.level, out, found))
    }

    #[test]
    fn wait_and_cluster_are_not_stored_and_empty_pairs_are_dropped() {
        let text = "TAGS=t;WAIT=false;CLUSTER=x;a=;=b;junk;k=v;";
        let stored = "TAGS=t;k=v;CLUSTER=c".to_string();
        assert_eq!(read(text, TOPIC), Some((i64::from(b't'), Some(false), 0, stored, vec![])));
        assert_eq!(read("", TOPIC).unwrap().1, Some(true));
    }

    #[test]
    fn the_place_of_a_message_decides_the_hashes_of_its_keys() {
        let key = |start: u32| index_hash(start, b"k");
        assert_eq!(read("KEYS=k  k;UNIQ_KEY=k", TOPIC).unwrap().4, [key(1); 3]);
        let (_, _, level, _, hashes) = read("KEYS=k;DELAY=3", TOPIC).unwrap();
        assert_eq!((level, hashes), (3, vec![key(2)]));
        let (_, waits, _, _, hashes) = read("KEYS=k;TRAN_MSG=true;PGROUP=g", TOPIC).unwrap();
        assert_eq!((waits, hashes), (None, vec![key(3)]));
    }

    #[test]
    fn unusual_properties_are_left_to_python() {
        for text in [
            "DELAY=-1",
            "TIMER_DELIVER_MS=1",
            "TIMER_DELAY_SEC=1;DELAY=1",
            "TIMER_OUT_MS=1",
            "DELAY=10000",
            "DELAY=1;REAL_TOPIC=t",
            "TRAN_MSG=true",
            "TRAN_MSG=false;PGROUP=g",
            "TRAN_MSG=true;PGROUP=g;DELAY=1",
            "KEYS=\u{e9}",
            "TAGS=\u{e9}",
        ] {
            assert_eq!(read(text, TOPIC), None, "{text}");
        }
        let none = TopicHashes { plain: 1, delayed: None, half: None };
        assert_eq!(read("DELAY=1", none), None);
        assert_eq!(read("TRAN_MSG=true;PGROUP=g", none), None);
    }

    #[test]
    fn hashes_are_those_of_java() {
        assert_eq!(java_hash(0, b"hello"), 99_162_322);
        let text: Vec<u8> = (0..100).map(|at: u32| (at * 37 % 128) as u8).collect();
        for size in 0..text.len() {
            let wanted = text[..size]
                .iter()
                .fold(7, |hash: u32, &byte| hash.wrapping_mul(31).wrapping_add(byte.into()));
            assert_eq!(java_hash(7, &text[..size]), wanted);
        }
        assert_eq!(java_hash_text(0, "\u{1f600}"), 0xd83d * 31 + 0xde00); // two code units
        assert_eq!(index_hash(0, b"polygenelubricants"), 0); // its hash is -2**31
        assert_eq!(index_hash(java_hash(0, b"t#"), b"k"), java_hash(0, b"t#k").cast_signed());
    }
}
