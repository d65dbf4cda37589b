// SPDX-License-Identifier: Apache-2.0
//! Headers of plain sends in both encodings. For an unusual header, these functions return `None`,
//! and Python takes over.
//!
//! A plain send has code 310 or 320 and expects an answer. Each field has one value, numbers
//! are plain decimals, texts are printable ASCII, and properties are any UTF-8. A client may have
//! signed it.

use crate::access::{Proof, Signed};
use crate::envelope::{self, ANSWERED};
use crate::scan::{Scan, decimal, decimal32};

/// The fields of a plain send that its record and its answer need.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Header<'a> {
    /// Topic; never empty, never with the system prefix `%`.
    pub topic: &'a [u8],
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
    /// The fields with which the client proves who it is.
    proof: Proof<'a>,
    head: &'a [u8],
    /// Where the fields from a to m begin and end in the head, except the properties. Slices would
    /// take a tenth of the time that is needed to read a header.
    values: [(u32, u32); FIELDS],
    seen: u32,
}

const JSON_SEND: &[u8] = b"{\"code\":310,";
const JSON_BATCH: &[u8] = b"{\"code\":320,";
const BINARY_SEND: [u8; 2] = 310u16.to_be_bytes();
const BINARY_BATCH: [u8; 2] = 320u16.to_be_bytes();
const REQUIRED: u32 = 0xFF; // the fields a to h
const PROPERTIES: u8 = b'i';
const FIELDS: usize = 13;

impl<'a> Header<'a> {
    fn note(&mut self, name: u8) -> Option<()> {
        let bit = 1u32 << (name - b'a');
        let is_new = self.seen & bit == 0;
        self.seen |= bit;
        is_new.then_some(())
    }

    /// Stores any field except the properties.
    #[inline]
    fn set(&mut self, name: u8, value: &'a [u8]) -> Option<()> {
        self.note(name)?;
        let start = value.as_ptr().addr().wrapping_sub(self.head.as_ptr().addr());
        self.values[usize::from(name - b'a')] = (start as u32, (start + value.len()) as u32);
        match name {
            b'a' | b'c' => {}
            b'b' => {
                if *value.first()? == b'%' {
                    return None;
                }
                self.topic = value;
            }
            b'd' | b'l' => {
                decimal32(value)?;
            }
            b'e' => self.queue_id = decimal32(value)?,
            b'f' => self.sys_flag = decimal32(value)?,
            b'g' => self.born_timestamp = decimal(value)?,
            b'h' => self.flag = decimal32(value)?,
            b'j' => self.reconsume_times = decimal32(value)?,
            b'k' => {
                truth(value)?;
            }
            b'm' => self.is_batch |= truth(value)?,
            _ => return None,
        }
        Some(())
    }

    /// Returns the value of a field that has occurred.
    fn known<'b>(&'b self, name: u8, properties: &'b [u8]) -> Option<&'b [u8]> {
        let value = if name == PROPERTIES { properties } else { self.value(name - b'a') };
        (self.seen & 1 << (name - b'a') != 0).then_some(value)
    }

    /// Returns the value of a field, except the properties; an empty one if it has not occurred.
    fn value(&self, number: u8) -> &'a [u8] {
        let (start, end) = self.values[usize::from(number)];
        self.head.get(start as usize..end as usize).unwrap_or_default()
    }

    /// Returns what the client signed, if it did. `properties` are decoded.
    #[must_use]
    pub fn signed(&self, properties: &'a [u8], body: &'a [u8]) -> Signed<'a, FIELDS> {
        let mut values = std::array::from_fn(|number| self.value(number as u8));
        values[usize::from(PROPERTIES - b'a')] = properties;
        Signed { proof: self.proof, values, body }
    }

    fn is_complete(&self) -> bool {
        self.seen & REQUIRED == REQUIRED
    }
}

fn truth(value: &[u8]) -> Option<bool> {
    match value {
        b"true" => Some(true),
        b"false" => Some(false),
        _ => None,
    }
}

/// Reads a header into a new one, because copies of it would take a tenth of the time; stores the
/// properties in `text`, which is cleared first.
#[inline]
pub fn read_header<'a>(
    header: &mut Header<'a>,
    serialization: u8,
    head: &'a [u8],
    text: &mut Vec<u8>,
) -> Option<()> {
    text.clear();
    header.head = head;
    match serialization {
        0 => read_json(header, head, text),
        1 => read_binary(header, head, text),
        _ => None,
    }
}

fn read_json<'a>(header: &mut Header<'a>, head: &'a [u8], text: &mut Vec<u8>) -> Option<()> {
    header.is_batch = head.starts_with(JSON_BATCH);
    if !header.is_batch && !head.starts_with(JSON_SEND) {
        return None;
    }
    let envelope = envelope::read_json(head, JSON_SEND.len(), ANSWERED, |scan| {
        read_json_fields(scan, header, text)
    })?;
    header.opaque = envelope.opaque;
    header.is_complete().then_some(())
}

fn read_json_fields<'a>(
    scan: &mut Scan<'a>,
    header: &mut Header<'a>,
    text: &mut Vec<u8>,
) -> Option<()> {
    scan.members(|scan, name| {
        let &[name @ b'a'..=b'm'] = name else {
            return header.proof.set(name, scan.plain()?);
        };
        if name == PROPERTIES {
            header.note(name)?;
            scan.text(text)
        } else {
            header.set(name, scan.plain()?)
        }
    })
}

fn read_binary<'a>(header: &mut Header<'a>, head: &'a [u8], text: &mut Vec<u8>) -> Option<()> {
    header.is_batch = head.starts_with(&BINARY_BATCH);
    if !header.is_batch && !head.starts_with(&BINARY_SEND) {
        return None;
    }
    let (envelope, mut rest) = envelope::read_binary(head, ANSWERED)?;
    header.opaque = envelope.opaque;
    while !rest.is_empty() {
        let (name, value, tail) = envelope::binary_field(rest)?;
        rest = tail;
        if value.is_empty() {
            return None;
        }
        let &[name @ b'a'..=b'm'] = name else {
            header.proof.set(name, value.is_ascii().then_some(value)?)?;
            continue;
        };
        if let Some(known) = header.known(name, text) {
            // In signed binary requests of Java's client, most fields occur twice.
            (known == value).then_some(())?;
        } else if name == PROPERTIES {
            header.note(name)?;
            std::str::from_utf8(value).ok()?;
            text.extend_from_slice(value);
        } else if value.is_ascii() {
            header.set(name, value)?;
        } else {
            return None;
        }
    }
    header.is_complete().then_some(())
}

#[cfg(test)]
mod tests {
    use super::*;

    const GIVEN: &str = r#""a":"g","b":"t","c":"TBW102","d":"4","e":"3","f":"0","g":"1700000000000","h":"7","i":"k\u0001v","j":"2","m":"false""#;

    fn json(fields: &str) -> String {
        format!(r#"{{"code":310,"extFields":{{{fields}}},"flag":0,"opaque":9}}"#)
    }

    fn read(head: &[u8], serialization: u8) -> Option<(Header<'_>, Vec<u8>)> {
        let (mut header, mut text) = (Header::default(), vec![]);
        read_header(&mut header, serialization, head, &mut text)?;
        Some((header, text))
    }

    /// The fields of a header except the properties, as texts.
    fn values<'a>(header: &Header<'a>) -> Vec<&'a [u8]> {
        (0..FIELDS as u8).map(|number| header.value(number)).collect()
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
        assert_eq!((one.topic, one.queue_id, one.flag), (b"t".as_slice(), 3, 7));
        assert_eq!((one.opaque, one.reconsume_times, one.is_batch), (9, 2, false));
        assert_eq!((one.born_timestamp, text.as_slice()), (1_700_000_000_000, &b"k\x01v"[..]));
        let known = |header: &Header<'_>| (header.sys_flag, header.born_timestamp, header.seen);
        assert_eq!((values(&two), known(&two), same), (values(&one), known(&one), text));
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
