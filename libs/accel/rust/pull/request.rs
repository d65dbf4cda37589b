// SPDX-License-Identifier: Apache-2.0
//! Headers of plain pulls in both encodings. For an unusual header, these functions return `None`,
//! and Python takes over.
//!
//! A plain pull has code 11 or 361 and expects an answer. Each field has one value, and numbers are
//! plain decimals. Texts are not decoded: their bytes are compared with the texts of a pull that
//! Python has already decoded. With access control, a text with escapes is unusual.

use crate::access::{Access, Proof, SUB, Signed, allows};
use crate::envelope::{self, ANSWERED};
use crate::scan::{decimal, decimal32};
use crate::signatures::Message;

const COMMIT: i32 = 0x1;
const SUBSCRIPTION: i32 = 0x4;
/// Commit, suspend, subscription, lite pull; other flags are rare.
const PLAIN_FLAGS: i32 = 0x1 | 0x2 | SUBSCRIPTION | 0x10;
/// Maximum size of all texts, so that keys stay small; longer ones are left to Python.
const TEXTS_BYTES_MAX: usize = 2048;

// The fields in the order of their names, in which they are signed.
const COMMIT_OFFSET: usize = 0;
const GROUP: usize = 1;
const EXPRESSION_TYPE: usize = 2;
const COUNT: usize = 3;
const QUEUE: usize = 4;
const OFFSET: usize = 5;
const SUB_VERSION: usize = 6;
const SUBSCRIPTION_TEXT: usize = 7;
const TIMEOUT: usize = 8;
const SYS_FLAG: usize = 9;
const TOPIC: usize = 10;
const FIELDS: usize = 11;

/// The fields whose values form a reader's key.
const KEYED: [usize; 5] = [GROUP, TOPIC, SUBSCRIPTION_TEXT, EXPRESSION_TYPE, SUB_VERSION];
const OPTIONAL: [usize; 2] = [SUBSCRIPTION_TEXT, EXPRESSION_TYPE];

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

/// The fields of a plain pull.
#[derive(Default)]
pub struct Fields<'a> {
    /// The numbers.
    pub asked: Asked,
    values: [Option<&'a [u8]>; FIELDS],
    proof: Proof<'a>,
    /// Whether a field may occur again with the same value, as most fields do in signed binary
    /// requests of Java's client.
    may_repeat: bool,
    has_escapes: bool,
    flags: i32,
    commit_offset: i64,
}

impl<'a> Fields<'a> {
    fn set(&mut self, name: &[u8], value: &'a [u8]) -> Option<()> {
        let index = match name {
            b"commitOffset" => COMMIT_OFFSET,
            b"consumerGroup" => GROUP,
            b"expressionType" => EXPRESSION_TYPE,
            b"maxMsgNums" => COUNT,
            b"queueId" => QUEUE,
            b"queueOffset" => OFFSET,
            b"subVersion" => SUB_VERSION,
            b"subscription" => SUBSCRIPTION_TEXT,
            b"suspendTimeoutMillis" => TIMEOUT,
            b"sysFlag" => SYS_FLAG,
            b"topic" => TOPIC,
            _ => return self.proof.set(name, value.is_ascii().then_some(value)?),
        };
        if let Some(known) = self.values[index] {
            return (self.may_repeat && known == value).then_some(());
        }
        self.values[index] = Some(value);
        match index {
            COMMIT_OFFSET => self.commit_offset = decimal(value)?,
            COUNT => self.asked.count_max = decimal32(value)?,
            QUEUE => self.asked.queue_id = decimal32(value)?,
            OFFSET => self.asked.queue_offset = decimal(value)?,
            SYS_FLAG => self.flags = decimal32(value)?,
            SUB_VERSION | TIMEOUT => {
                decimal(value)?;
            }
            _ => {}
        }
        Some(())
    }

    /// Returns whether the sender may pull; without access control, everyone may.
    #[must_use]
    pub fn is_allowed_by(
        &self,
        access: Option<&Access>,
        body: &'a [u8],
        message: &mut Message,
    ) -> bool {
        let values = self.values.map(Option::unwrap_or_default);
        let is_text = |value: &[u8]| std::str::from_utf8(value).is_ok();
        if access.is_some() && (self.has_escapes || !values.into_iter().all(is_text)) {
            return false;
        }
        allows(access, &Signed { proof: self.proof, values, body }, message, |account| {
            account.may(SUB, values[TOPIC]) && account.may_for_group(SUB, values[GROUP])
        })
    }

    /// Checks that all required fields are present, and writes the key.
    fn finish(mut self, serialization: u8, key: &mut Vec<u8>) -> Option<Self> {
        let is_missing = |index: usize| self.values[index].is_none() && !OPTIONAL.contains(&index);
        if (0..FIELDS).any(is_missing) || self.flags & !PLAIN_FLAGS != 0 {
            return None;
        }
        let texts = KEYED.map(|index| self.values[index]);
        let bytes: usize = texts.iter().flatten().map(|text| text.len()).sum();
        if bytes > TEXTS_BYTES_MAX {
            return None;
        }
        key.clear();
        key.extend([serialization, u8::from(self.flags & SUBSCRIPTION != 0)]);
        for text in texts {
            // No text contains such bytes, so each key belongs to one set of texts.
            key.push(u8::from(text.is_some()));
            key.extend_from_slice(text.unwrap_or_default());
            key.push(0);
        }
        if self.flags & COMMIT != 0 {
            self.asked.commit_offset = Some(self.commit_offset);
        }
        Some(self)
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
pub fn read_pull<'a>(serialization: u8, head: &'a [u8], key: &mut Vec<u8>) -> Option<Fields<'a>> {
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
    })?
    .opaque;
    fields.has_escapes = head.contains(&b'\\');
    Some(fields)
}

fn read_binary(head: &[u8]) -> Option<Fields<'_>> {
    let (envelope, named) = envelope::read_binary(head, ANSWERED)?;
    let mut fields = Fields { may_repeat: true, ..Fields::default() };
    fields.asked.opaque = envelope.opaque;
    envelope::binary_fields(named, |name, value, _| {
        let is_text = value.iter().all(|&byte| byte >= b' ');
        fields.set(name, is_text.then_some(value)?)
    })?;
    Some(fields)
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
        let asked = read_pull(0, HEAD.as_bytes(), &mut key).map(|fields| fields.asked);
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
            assert!(read_pull(0, changed.as_bytes(), &mut vec![]).is_none(), "{to}");
        }
    }
}
