// SPDX-License-Identifier: Apache-2.0
//! The parts that the headers of all plain requests share: an expected flag, and no remark. For any
//! other header, these functions return `None`, and Python takes over.

use crate::scan::{Scan, be32};

/// The flag of requests that expect an answer.
pub const ANSWERED: u32 = 0;
/// The flag of requests without an answer.
pub const ONEWAY: u32 = 2;

const BINARY_FIXED_BYTES: usize = 21;

/// The parts of a header, besides its fields, that requests need.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Envelope {
    /// Number that the answer repeats.
    pub opaque: i32,
    /// Version of the client; 0 if it names none.
    pub version: i32,
    /// In a JSON header, where the opaque begins and ends; both are 0 if it has none.
    pub opaque_at: (u32, u32),
}

/// Reads the members of a JSON header after the code. Each member may occur at most once.
/// `read_fields` reads the object of extended fields.
#[inline]
pub fn read_json<'a>(
    head: &'a [u8],
    start: usize,
    flag: u32,
    mut read_fields: impl FnMut(&mut Scan<'a>) -> Option<()>,
) -> Option<Envelope> {
    let mut scan = Scan::new(head, start);
    let (mut envelope, mut seen) = (Envelope::default(), 0u32);
    scan.members(|scan, name| {
        let bit = match name {
            b"flag" => (scan.number()? == i64::from(flag)).then_some(1)?,
            b"language" => {
                scan.plain()?;
                1 << 1
            }
            b"opaque" => {
                let start = scan.position();
                envelope.opaque = i32::try_from(scan.number()?).ok()?;
                envelope.opaque_at = (start as u32, scan.position() as u32);
                1 << 2
            }
            b"serializeTypeCurrentRPC" => {
                scan.plain()?;
                1 << 3
            }
            b"version" => {
                envelope.version = i32::try_from(scan.number()?).ok()?;
                1 << 4
            }
            b"extFields" => {
                scan.eat(b'{')?;
                read_fields(scan)?;
                1 << 5
            }
            _ => return None,
        };
        let is_new = seen & bit == 0;
        seen |= bit;
        is_new.then_some(())
    })?;
    let has_flag = flag == ANSWERED || seen & 1 != 0; // a missing flag is 0
    (scan.is_at_end() && has_flag).then_some(envelope)
}

/// Reads the fixed part of a binary header; returns it and the extended fields.
#[inline]
#[must_use]
pub fn read_binary(head: &[u8], flag: u32) -> Option<(Envelope, &[u8])> {
    if head.len() < BINARY_FIXED_BYTES {
        return None;
    }
    let (own_flag, remark_bytes, ext_bytes) = (be32(head, 9), be32(head, 13), be32(head, 17));
    if own_flag != flag
        || remark_bytes != 0
        || ext_bytes as usize != head.len() - BINARY_FIXED_BYTES
    {
        return None;
    }
    let version = i32::from(i16::from_be_bytes([head[3], head[4]]));
    let opaque = be32(head, 5).cast_signed();
    let envelope = Envelope { opaque, version, opaque_at: (0, 0) };
    Some((envelope, &head[BINARY_FIXED_BYTES..]))
}

/// Calls `read` with the name and the value of each extended field of a binary header, and with the
/// size of the fields that follow. No value is empty.
#[inline]
pub fn binary_fields<'a>(
    mut rest: &'a [u8],
    mut read: impl FnMut(&'a [u8], &'a [u8], usize) -> Option<()>,
) -> Option<()> {
    while !rest.is_empty() {
        let (name, tail) = sized::<2>(rest)?;
        let (value, tail) = sized::<4>(tail)?;
        rest = tail;
        if value.is_empty() {
            return None;
        }
        read(name, value, rest.len())?;
    }
    Some(())
}

/// Reads a header of the request that begins with `json` or `binary`, in either encoding. `set` gets
/// the name and the value of each extended field, which is ASCII, and whether fields may be repeated.
pub fn read_plain<'a>(
    serialization: u8,
    head: &'a [u8],
    (json, binary): (&[u8], [u8; 2]),
    flag: u32,
    mut set: impl FnMut(&[u8], &'a [u8], bool) -> Option<()>,
) -> Option<Envelope> {
    match serialization {
        0 if head.starts_with(json) => read_json(head, json.len(), flag, |scan| {
            scan.members(|scan, name| set(name, scan.plain()?, false))
        }),
        1 if head.starts_with(&binary) => {
            let (envelope, fields) = read_binary(head, flag)?;
            let plain = |value: &'a [u8]| value.is_ascii().then_some(value);
            binary_fields(fields, |name, value, _| set(name, plain(value)?, true))?;
            Some(envelope)
        }
        _ => None,
    }
}

/// Splits off bytes that are preceded by their length, which takes `N` bytes.
#[inline]
fn sized<const N: usize>(bytes: &[u8]) -> Option<(&[u8], &[u8])> {
    let (length, rest) = bytes.split_first_chunk::<N>()?;
    let length = length.iter().fold(0usize, |value, &byte| value << 8 | usize::from(byte));
    rest.split_at_checked(length)
}
