// SPDX-License-Identifier: Apache-2.0
//! The parts that the headers of plain sends and plain pulls share. Both are requests with an
//! answer and without a remark; for anything else, these functions return `None`, and Python takes
//! over.

use crate::scan::{Scan, be32};

const BINARY_FIXED_BYTES: usize = 21;

/// Reads the members of a JSON header after the code and returns the opaque. Each member may occur
/// at most once. `read_fields` reads the object of extended fields.
#[inline]
pub fn read_json<'a>(
    head: &'a [u8],
    start: usize,
    mut read_fields: impl FnMut(&mut Scan<'a>) -> Option<()>,
) -> Option<i32> {
    let mut scan = Scan::new(head, start);
    let (mut opaque, mut seen) = (0, 0u32);
    scan.members(|scan, name| {
        let bit = match name {
            b"flag" => {
                // Neither an answer nor a oneway request.
                (scan.number()? == 0).then_some(1)?
            }
            b"language" => {
                scan.plain()?;
                1 << 1
            }
            b"opaque" => {
                opaque = i32::try_from(scan.number()?).ok()?;
                1 << 2
            }
            b"serializeTypeCurrentRPC" => {
                scan.plain()?;
                1 << 3
            }
            b"version" => {
                i32::try_from(scan.number()?).ok()?;
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
    scan.is_at_end().then_some(opaque)
}

/// Reads the fixed part of a binary header; returns the opaque and the extended fields.
#[inline]
#[must_use]
pub fn read_binary(head: &[u8]) -> Option<(i32, &[u8])> {
    if head.len() < BINARY_FIXED_BYTES {
        return None;
    }
    let (flag, remark_bytes, ext_bytes) = (be32(head, 9), be32(head, 13), be32(head, 17));
    if flag != 0 || remark_bytes != 0 || ext_bytes as usize != head.len() - BINARY_FIXED_BYTES {
        return None;
    }
    Some((be32(head, 5).cast_signed(), &head[BINARY_FIXED_BYTES..]))
}
