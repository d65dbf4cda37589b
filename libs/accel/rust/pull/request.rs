// SPDX-License-Identifier: Apache-2.0
//! Headers of plain pulls in both encodings. For an unusual header, these functions return `None`,
//! and Python takes over.
//!
//! A plain pull has code 11 or 361 and expects an answer. Each field occurs at most once, and
//! numbers are plain decimals. The texts are not decoded: they only have to match the texts of a
//! pull that Python has already decoded, so their bytes are compared.

use crate::envelope::{self, ANSWERED};
use crate::scan::{decimal, decimal32};

const COMMIT: i32 = 0x1;
const SUBSCRIPTION: i32 = 0x4;
/// Commit, suspend, subscription, lite pull; other flags are rare.
const PLAIN_FLAGS: i32 = 0x1 | 0x2 | SUBSCRIPTION | 0x10;
/// Maximum size of all texts, so that keys stay small; longer ones are left to Python.
const TEXTS_BYTES_MAX: usize = 2048;

/// Number of fields whose values form a reader's key.
const KEYED: usize = 5;
const SUB_VERSION: usize = 4;

const SEEN_QUEUE: u32 = 1 << 8;
const SEEN_OFFSET: u32 = 1 << 9;
const SEEN_COUNT: u32 = 1 << 10;
const SEEN_FLAGS: u32 = 1 << 11;
const SEEN_COMMIT: u32 = 1 << 12;
const SEEN_TIMEOUT: u32 = 1 << 13;
/// The fields that must be present: group, topic, version of the subscription, and all numbers.
const REQUIRED: u32 = 0b10011 | 0x3F00;

/// The numbers in a plain pull.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Asked {
    /// Queue id; never negative.
    pub queue_id: i32,
    /// First queue offset.
    pub queue_offset: i64,
    /// Maximum number of messages; an answer has at least one message.
    pub count_max: i32,
    /// The offset to commit.
    pub commit_offset: Option<i64>,
    /// Opaque of the request.
    pub opaque: i32,
}

#[derive(Default)]
struct Fields<'a> {
    texts: [Option<&'a [u8]>; KEYED],
    asked: Asked,
    flags: i32,
    commit_offset: i64,
    seen: u32,
}

impl<'a> Fields<'a> {
    fn set(&mut self, name: &[u8], value: &'a [u8]) -> Option<()> {
        let bit = match name {
            b"consumerGroup" => self.text(0, value),
            b"topic" => self.text(1, value),
            b"subscription" => self.text(2, value),
            b"expressionType" => self.text(3, value),
            b"subVersion" => {
                decimal(value)?;
                self.text(SUB_VERSION, value)
            }
            b"queueId" => {
                self.asked.queue_id = decimal32(value)?;
                SEEN_QUEUE
            }
            b"queueOffset" => {
                self.asked.queue_offset = decimal(value)?;
                SEEN_OFFSET
            }
            b"maxMsgNums" => {
                self.asked.count_max = decimal32(value)?;
                SEEN_COUNT
            }
            b"sysFlag" => {
                self.flags = decimal32(value)?;
                SEEN_FLAGS
            }
            b"commitOffset" => {
                self.commit_offset = decimal(value)?;
                SEEN_COMMIT
            }
            b"suspendTimeoutMillis" => {
                decimal(value)?;
                SEEN_TIMEOUT
            }
            _ => return None,
        };
        let is_new = self.seen & bit == 0;
        self.seen |= bit;
        is_new.then_some(())
    }

    fn text(&mut self, index: usize, value: &'a [u8]) -> u32 {
        self.texts[index] = Some(value);
        1 << index
    }

    /// Checks that all required fields are present, and writes the key.
    fn finish(mut self, serialization: u8, key: &mut Vec<u8>) -> Option<Asked> {
        if self.seen & REQUIRED != REQUIRED || self.flags & !PLAIN_FLAGS != 0 {
            return None;
        }
        let bytes: usize = self.texts.iter().flatten().map(|text| text.len()).sum();
        if bytes > TEXTS_BYTES_MAX {
            return None;
        }
        key.clear();
        key.extend([serialization, u8::from(self.flags & SUBSCRIPTION != 0)]);
        for text in self.texts {
            // No text contains such bytes, so each key belongs to one set of texts.
            key.push(u8::from(text.is_some()));
            key.extend_from_slice(text.unwrap_or_default());
            key.push(0);
        }
        if self.flags & COMMIT != 0 {
            self.asked.commit_offset = Some(self.commit_offset);
        }
        Some(self.asked)
    }
}

/// Returns whether a header may belong to a pull. It is cheap, because it runs for every frame.
#[must_use]
pub fn may_be_pull(serialization: u8, head: &[u8]) -> bool {
    match serialization {
        0 => head.starts_with(b"{\"code\":11,") || head.starts_with(b"{\"code\":361,"),
        1 => head.starts_with(&11u16.to_be_bytes()) || head.starts_with(&361u16.to_be_bytes()),
        _ => false,
    }
}

/// Reads a header; sets `key` to the key of its reader.
pub fn read_pull(serialization: u8, head: &[u8], key: &mut Vec<u8>) -> Option<Asked> {
    if !may_be_pull(serialization, head) {
        return None;
    }
    let fields = if serialization == 0 { read_json(head)? } else { read_binary(head)? };
    fields.finish(serialization, key)
}

fn read_json(head: &[u8]) -> Option<Fields<'_>> {
    let start = head.iter().position(|&byte| byte == b',')? + 1;
    let mut fields = Fields::default();
    fields.asked.opaque = envelope::read_json(head, start, ANSWERED, |scan| {
        scan.members(|scan, name| fields.set(name, scan.raw()?))
    })?;
    Some(fields)
}

fn read_binary(head: &[u8]) -> Option<Fields<'_>> {
    let (opaque, mut rest) = envelope::read_binary(head, ANSWERED)?;
    let mut fields = Fields::default();
    fields.asked.opaque = opaque;
    while !rest.is_empty() {
        let (name, tail) = sized::<2>(rest)?;
        let (value, tail) = sized::<4>(tail)?;
        rest = tail;
        if value.is_empty() || value.iter().any(|&byte| byte < b' ') {
            return None;
        }
        fields.set(name, value)?;
    }
    Some(fields)
}

/// Splits off bytes that are preceded by their length, which takes `N` bytes.
fn sized<const N: usize>(bytes: &[u8]) -> Option<(&[u8], &[u8])> {
    let (length, rest) = bytes.split_first_chunk::<N>()?;
    let length = length.iter().fold(0usize, |value, &byte| value << 8 | usize::from(byte));
    rest.split_at_checked(length)
}

#[cfg(test)]
mod tests {
    use super::*;

    const HEAD: &str = "{\"code\":11,\"extFields\":{\"consumerGroup\":\"g\",\"topic\":\"T\",\
        \"queueId\":\"3\",\"queueOffset\":\"70\",\"maxMsgNums\":\"32\",\"sysFlag\":\"3\",\
        \"commitOffset\":\"69\",\"suspendTimeoutMillis\":\"15000\",\"subscription\":\"a || \\\"b\",\
        \"subVersion\":\"1\"},\"flag\":0,\"language\":\"JAVA\",\"opaque\":7,\
        \"serializeTypeCurrentRPC\":\"JSON\",\"version\":401}";

    #[test]
    fn a_pull_of_an_official_client_is_plain() {
        let mut key = vec![];
        let asked = read_pull(0, HEAD.as_bytes(), &mut key);
        let wanted = Asked {
            queue_id: 3,
            queue_offset: 70,
            count_max: 32,
            commit_offset: Some(69),
            opaque: 7,
        };
        assert_eq!(asked, Some(wanted));
        assert_eq!(key, b"\0\0\x01g\0\x01T\0\x01a || \\\"b\0\0\0\x011\0");
    }

    #[test]
    fn whatever_is_unusual_is_left_to_python() {
        for (from, to) in [
            ("\"flag\":0", "\"flag\":2"),
            ("\"queueId\":\"3\"", "\"queueId\":\"-3\""),
            ("\"queueId\":\"3\"", "\"queueId\":\"3\",\"queueId\":\"3\""),
            ("\"topic\":\"T\",", ""),
            ("\"sysFlag\":\"3\"", "\"sysFlag\":\"8\""),
            ("\"opaque\":7", "\"opaque\":7,\"opaque\":7"),
            ("\"topic\":\"T\"", "\"topic\":\"T\",\"maxMsgBytes\":\"1\""),
            (":401}", ":401} "),
            ("{\"code\":11,", "{\"code\":12,"),
        ] {
            assert!(HEAD.contains(from));
            let changed = HEAD.replace(from, to);
            assert_eq!(read_pull(0, changed.as_bytes(), &mut vec![]), None, "{to}");
        }
    }
}
