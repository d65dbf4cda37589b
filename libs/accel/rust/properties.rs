// SPDX-License-Identifier: Apache-2.0
//! Properties of plain sends: the text to store, the tag code and the hashes of the keys.
//!
//! The twin of `cometmq.broker.messages.read_sent`, for texts whose tags and keys are ASCII.

/// Separates the pairs of a property text.
pub const PAIR_SEPARATOR: u8 = 2;
const VALUE_SEPARATOR: u8 = 1;

/// The facts in a send's property text, besides the pairs to store.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sent<'a> {
    /// Tag code for the consume queue; 0 without tags.
    pub tag_code: i64,
    /// The value of WAIT, if the text has one.
    pub wait: Option<&'a [u8]>,
}

impl Sent<'_> {
    /// Whether the sender waits for flush and replicas; `RocketMQ`'s default is true.
    #[must_use]
    pub fn waits(&self) -> bool {
        self.wait.is_none_or(|value| value.eq_ignore_ascii_case(b"true"))
    }
}

struct Found<'a> {
    unique_key: &'a [u8],
    keys: &'a [u8],
    tags: &'a [u8],
    wait: Option<&'a [u8]>,
    is_delayed: bool,
}

/// Calls `keep` with each pair that is stored.
fn read_pairs<'a>(raw: &'a [u8], mut keep: impl FnMut(&'a [u8])) -> Found<'a> {
    let mut found = Found { unique_key: b"", keys: b"", tags: b"", wait: None, is_delayed: false };
    for pair in raw.split(|&byte| byte == PAIR_SEPARATOR) {
        let Some(cut) = pair.iter().position(|&byte| byte == VALUE_SEPARATOR) else {
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
            b"DELAY" | b"TRAN_MSG" => found.is_delayed = true,
            _ => {}
        }
        keep(pair);
    }
    found
}

/// Reads the text of a request: appends the text to store to `out` and the hashes of its keys to
/// `hashes`. `None` for messages that are delayed or part of a transaction, and for tags and keys
/// outside ASCII; both may have grown by then.
pub fn read_sent<'a>(
    raw: &'a [u8],
    cluster: &[u8],
    topic_hash: u32,
    out: &mut Vec<u8>,
    hashes: &mut Vec<i32>,
) -> Option<Sent<'a>> {
    let found = read_pairs(raw, |pair| {
        out.extend_from_slice(pair);
        out.push(PAIR_SEPARATOR);
    });
    out.extend_from_slice(cluster);
    if found.is_delayed {
        return None;
    }
    Some(Sent { tag_code: index(&found, topic_hash, hashes)?, wait: found.wait })
}

/// Reads the text of one message of a batch, which is stored unchanged; returns its tag code.
pub fn read_item(raw: &[u8], topic_hash: u32, hashes: &mut Vec<i32>) -> Option<i64> {
    index(&read_pairs(raw, |_| ()), topic_hash, hashes)
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

/// Continues `String.hashCode()` over ASCII.
#[must_use]
pub fn java_hash(start: u32, text: &[u8]) -> u32 {
    text.iter().fold(start, |hash, &byte| hash.wrapping_mul(31).wrapping_add(u32::from(byte)))
}

/// Continues `String.hashCode()` over any text, by UTF-16 code units.
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

/// Like `index_hash`, for any text.
#[must_use]
pub fn index_hash_text(topic_hash: u32, key: &str) -> i32 {
    positive(java_hash_text(topic_hash, key))
}

/// Java takes the absolute value and maps -2**31, which has none, to 0.
fn positive(hash: u32) -> i32 {
    hash.cast_signed().checked_abs().unwrap_or(0)
}
