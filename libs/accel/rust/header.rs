// SPDX-License-Identifier: Apache-2.0
//! Headers of plain sends in both encodings. For an unusual header, these functions return `None`,
//! and Python takes over.
//!
//! A plain send has code 310 or 320 and expects an answer. Each field has one value, numbers are
//! plain decimals, texts are printable ASCII, and properties are any UTF-8. The header may have a
//! signature.

use crate::access::Proof;
use crate::envelope::{self, ANSWERED};
use crate::scan::{Scan, decimal, decimal32};

/// The fields of a plain send that its record, its answer and its signature need. Texts are ranges
/// of the header's bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Header {
    /// Queue id; never negative.
    pub queue_id: i32,
    /// System flags.
    pub sys_flag: i32,
    /// Born timestamp in milliseconds.
    pub born_timestamp: i64,
    /// The application's flag.
    pub flag: i32,
    /// Number of earlier deliveries.
    pub reconsume_times: i32,
    /// Opaque of the request.
    pub opaque: i32,
    /// Whether the body is a batch.
    pub is_batch: bool,
    /// In a JSON header, where the opaque is.
    pub(crate) opaque_at: Span,
    /// Where the fields are, in the order of their names, which is the order in which they are
    /// signed; the signature is the last. In a JSON header, the properties are still escaped.
    spans: [Span; FIELDS],
    seen: u32,
}

/// Where a text begins and ends.
pub(crate) type Span = (u32, u32);

const JSON_SEND: &[u8] = b"{\"code\":310,";
const JSON_BATCH: &[u8] = b"{\"code\":320,";
const BINARY_SEND: [u8; 2] = 310u16.to_be_bytes();
const BINARY_BATCH: [u8; 2] = 320u16.to_be_bytes();
const ACCESS_KEY: usize = 0;
const SECURITY_TOKEN: usize = 1;
const REQUIRED: u32 = 0xFF << field(b'a'); // the fields a to h
pub(crate) const TOPIC: usize = field(b'b');
pub(crate) const QUEUE_ID: usize = field(b'e');
pub(crate) const BORN_TIMESTAMP: usize = field(b'g');
pub(crate) const PROPERTIES: usize = field(b'i');
/// All fields except the signature are signed.
pub(crate) const SIGNATURE: usize = field(b'm') + 1;
const FIELDS: usize = SIGNATURE + 1;

/// Returns the number of a field that has one letter as its name.
const fn field(name: u8) -> usize {
    SECURITY_TOKEN + 1 + (name - b'a') as usize
}

/// Returns the number of a field of plain sends.
fn number_of(name: &[u8]) -> Option<usize> {
    match name {
        &[name @ b'a'..=b'm'] => Some(field(name)),
        b"AccessKey" => Some(ACCESS_KEY),
        b"SecurityToken" => Some(SECURITY_TOKEN),
        b"Signature" => Some(SIGNATURE),
        _ => None,
    }
}

impl Header {
    fn note(&mut self, number: usize, (start, end): (usize, usize)) -> Option<()> {
        let bit = 1u32 << number;
        let is_new = self.seen & bit == 0;
        self.seen |= bit;
        self.spans[number] = (start as u32, end as u32);
        is_new.then_some(())
    }

    /// Stores the value, which ends at a position of the header, of any field except the properties.
    #[inline]
    fn set(&mut self, number: usize, value: &[u8], end: usize) -> Option<()> {
        const A: usize = field(b'a');
        const C: usize = field(b'c');
        const D: usize = field(b'd');
        const F: usize = field(b'f');
        const H: usize = field(b'h');
        const J: usize = field(b'j');
        const K: usize = field(b'k');
        const L: usize = field(b'l');
        const M: usize = field(b'm');
        self.note(number, (end - value.len(), end))?;
        match number {
            ACCESS_KEY | SECURITY_TOKEN | SIGNATURE | A | C => {}
            TOPIC => {
                if *value.first()? == b'%' {
                    return None;
                }
            }
            D | L => {
                decimal32(value)?;
            }
            QUEUE_ID => self.queue_id = decimal32(value)?,
            F => self.sys_flag = decimal32(value)?,
            BORN_TIMESTAMP => self.born_timestamp = decimal(value)?,
            H => self.flag = decimal32(value)?,
            J => self.reconsume_times = decimal32(value)?,
            K => {
                truth(value)?;
            }
            M => self.is_batch |= truth(value)?,
            _ => return None,
        }
        Some(())
    }

    fn has(&self, number: usize) -> bool {
        self.seen & 1 << number != 0
    }

    pub(crate) fn span(&self, number: usize) -> Span {
        self.spans[number]
    }

    /// Returns the value of a field as it is in the header; an empty one if it has not occurred.
    fn value<'a>(&self, number: usize, head: &'a [u8]) -> &'a [u8] {
        slice(head, self.spans[number])
    }

    /// Returns the topic, which is never empty and never has the system prefix `%`.
    #[must_use]
    pub fn topic<'a>(&self, head: &'a [u8]) -> &'a [u8] {
        self.value(TOPIC, head)
    }

    /// Returns the fields with which the client proves who it is.
    #[must_use]
    pub(crate) fn proof<'a>(&self, head: &'a [u8]) -> Proof<'a> {
        let value = |number| self.has(number).then(|| self.value(number, head));
        Proof {
            access_key: value(ACCESS_KEY),
            security_token: value(SECURITY_TOKEN),
            signature: value(SIGNATURE),
        }
    }

    /// Returns the content that the client should have signed. `properties` are decoded.
    #[inline]
    pub(crate) fn signed<'a>(
        &self,
        head: &'a [u8],
        properties: &'a [u8],
        body: &'a [u8],
    ) -> [&'a [u8]; FIELDS] {
        let mut parts = self.spans.map(|span| slice(head, span));
        parts[PROPERTIES] = properties;
        parts[SIGNATURE] = body;
        parts
    }

    fn is_complete(&self) -> bool {
        self.seen & REQUIRED == REQUIRED
    }
}

/// Returns the text of a header at a span.
pub(crate) fn slice(head: &[u8], (start, end): Span) -> &[u8] {
    head.get(start as usize..end as usize).unwrap_or_default()
}

fn truth(value: &[u8]) -> Option<bool> {
    match value {
        b"true" => Some(true),
        b"false" => Some(false),
        _ => None,
    }
}

/// Reads a header into `header`, because returning a copy would take a tenth of the time. Stores
/// the properties in `text`, which is cleared first.
#[inline]
pub fn read_header(
    header: &mut Header,
    serialization: u8,
    head: &[u8],
    text: &mut Vec<u8>,
) -> Option<()> {
    text.clear();
    match serialization {
        0 => read_json(header, head, text),
        1 => read_binary(header, head, text),
        _ => None,
    }
}

fn read_json(header: &mut Header, head: &[u8], text: &mut Vec<u8>) -> Option<()> {
    header.is_batch = head.starts_with(JSON_BATCH);
    if !header.is_batch && !head.starts_with(JSON_SEND) {
        return None;
    }
    let envelope = envelope::read_json(head, JSON_SEND.len(), ANSWERED, |scan| {
        read_json_fields(scan, header, text)
    })?;
    header.opaque = envelope.opaque;
    header.opaque_at = envelope.opaque_at;
    header.is_complete().then_some(())
}

fn read_json_fields(scan: &mut Scan<'_>, header: &mut Header, text: &mut Vec<u8>) -> Option<()> {
    scan.members(|scan, name| {
        let number = number_of(name)?;
        if number == PROPERTIES {
            let start = scan.position() + 1;
            scan.text(text)?;
            header.note(number, (start, scan.position() - 1))
        } else {
            let value = scan.plain()?;
            header.set(number, value, scan.position() - 1)
        }
    })
}

fn read_binary(header: &mut Header, head: &[u8], text: &mut Vec<u8>) -> Option<()> {
    header.is_batch = head.starts_with(&BINARY_BATCH);
    if !header.is_batch && !head.starts_with(&BINARY_SEND) {
        return None;
    }
    let (envelope, fields) = envelope::read_binary(head, ANSWERED)?;
    header.opaque = envelope.opaque;
    envelope::binary_fields(fields, |name, value, left| {
        let (number, end) = (number_of(name)?, head.len() - left);
        if name.len() == 1 && header.has(number) {
            // In signed binary requests of Java's client, most fields occur twice.
            (header.value(number, head) == value).then_some(())
        } else if number == PROPERTIES {
            text.extend_from_slice(std::str::from_utf8(value).ok()?.as_bytes());
            header.note(number, (end - value.len(), end))
        } else {
            header.set(number, value.is_ascii().then_some(value)?, end)
        }
    })?;
    header.is_complete().then_some(())
}

#[cfg(test)]
mod tests {
    use super::*;

    const GIVEN: &str = r#""a":"g","b":"t","c":"TBW102","d":"4","e":"3","f":"0","g":"1700000000000","h":"7","i":"k\u0001v","j":"2","m":"false""#;

    fn json(fields: &str) -> String {
        format!(r#"{{"code":310,"extFields":{{{fields}}},"flag":0,"opaque":9}}"#)
    }

    fn read(head: &[u8], serialization: u8) -> Option<(Header, Vec<u8>)> {
        let (mut header, mut text) = (Header::default(), vec![]);
        read_header(&mut header, serialization, head, &mut text)?;
        Some((header, text))
    }

    /// The fields of a header except the properties, as texts.
    fn values<'a>(header: &Header, head: &'a [u8]) -> [&'a [u8]; FIELDS] {
        header.signed(head, b"", header.value(SIGNATURE, head))
    }

    /// The binary form of the fields a to i, with these more at its end.
    fn binary(more: &[(&str, &str)]) -> Vec<u8> {
        let own = ["g", "t", "TBW102", "4", "3", "0", "1700000000000", "7", "k\x01v"];
        let names = ["a", "b", "c", "d", "e", "f", "g", "h", "i"];
        let mut ext = vec![];
        for (name, value) in names.into_iter().zip(own).chain(more.iter().copied()) {
            ext.extend((name.len() as u16).to_be_bytes());
            ext.extend(name.as_bytes());
            ext.extend((value.len() as u32).to_be_bytes());
            ext.extend(value.as_bytes());
        }
        let fixed = [1, 54, 0, 1, 145, 0, 0, 0, 9, 0, 0, 0, 0, 0, 0, 0, 0];
        [&fixed, (ext.len() as u32).to_be_bytes().as_slice(), &ext].concat()
    }

    #[test]
    fn both_encodings_give_the_same_fields() {
        let (head, other) = (json(GIVEN), binary(&[("j", "2"), ("m", "false")]));
        let (one, text) = read(head.as_bytes(), 0).unwrap();
        let (two, same) = read(&other, 1).unwrap();
        assert_eq!((one.topic(head.as_bytes()), one.queue_id, one.flag), (&b"t"[..], 3, 7));
        assert_eq!((one.opaque, one.reconsume_times, one.is_batch), (9, 2, false));
        assert_eq!((one.born_timestamp, text.as_slice()), (1_700_000_000_000, &b"k\x01v"[..]));
        let known = |header: &Header| (header.sys_flag, header.born_timestamp, header.seen);
        assert_eq!(values(&two, &other), values(&one, head.as_bytes()));
        assert_eq!((known(&two), same), (known(&one), text));
        assert_eq!((two.queue_id, two.opaque, two.is_batch), (3, 9, false));
    }

    #[test]
    fn a_binary_field_may_be_repeated_only_with_its_value() {
        assert!(read(&binary(&[("b", "t"), ("i", "k\x01v")]), 1).is_some());
        assert!(read(&binary(&[("b", "u")]), 1).is_none());
        assert!(read(&binary(&[("i", "k\x01w")]), 1).is_none());
    }

    #[test]
    fn unusual_headers_are_left_to_python() {
        for (from, to) in [
            (r#""b":"t""#, r#""b":"%RETRY%g""#),
            (r#""b":"t""#, r#""b":"""#),
            (r#""b":"t","#, ""),
            (r#""e":"3""#, r#""e":"-1""#),
            (r#""e":"3""#, r#""e":"3","e":"3""#),
            (r#""m":"false""#, r#""m":"no""#),
            (r#""m":"false""#, r#""n":"1""#),
        ] {
            let fields = GIVEN.replace(from, to);
            assert_ne!(fields, GIVEN);
            assert!(read(json(&fields).as_bytes(), 0).is_none(), "{to}");
        }
        let head = json(GIVEN);
        assert!(read(head.replace("310", "311").as_bytes(), 0).is_none());
        assert!(read(head.as_bytes(), 1).is_none());
        assert!(read(head.as_bytes(), 2).is_none());
        assert!(read(head.replace("310", "320").as_bytes(), 0).unwrap().0.is_batch);
    }
}
