// SPDX-License-Identifier: Apache-2.0
//! Numbers, ids and lengths in the form that records and answers contain.

use crate::host::Host;

const HEX: &[u8; 16] = b"0123456789ABCDEF";

/// Returns a broker's address in the form with which message ids begin.
#[must_use]
pub fn hex_host(host: &Host) -> Vec<u8> {
    let digits = |&byte| [HEX[usize::from(byte >> 4)], HEX[usize::from(byte & 15)]];
    host.packed().iter().flat_map(digits).collect()
}

/// Appends a physical offset as message ids contain it.
pub fn push_hex(out: &mut Vec<u8>, offset: i64) {
    let mut digits = [0; 16];
    for (digit, shift) in digits.iter_mut().zip((0..16).rev()) {
        *digit = HEX[usize::try_from(offset >> (4 * shift) & 15).unwrap_or(0)];
    }
    out.extend_from_slice(&digits);
}

pub(crate) fn push_entry(out: &mut Vec<u8>, name: &[u8], value: impl FnOnce(&mut Vec<u8>)) {
    out.extend_from_slice(&(name.len() as u16).to_be_bytes());
    out.extend_from_slice(name);
    let length = out.len();
    out.extend_from_slice(&[0; 4]);
    value(out);
    close_length(out, length);
}

/// Sets the length word at this position to the number of bytes after it.
pub(crate) fn close_length(out: &mut [u8], at: usize) {
    let bytes = (out.len() - at - 4) as u32;
    out[at..at + 4].copy_from_slice(&bytes.to_be_bytes());
}

/// Appends a number in decimal.
pub fn push_decimal(out: &mut Vec<u8>, value: i64) {
    let mut digits = [0u8; 20];
    let mut at = digits.len();
    let mut rest = value.unsigned_abs();
    loop {
        at -= 1;
        digits[at] = b'0' + (rest % 10) as u8;
        rest /= 10;
        if rest == 0 {
            break;
        }
    }
    if value < 0 {
        out.push(b'-');
    }
    out.extend_from_slice(&digits[at..]);
}
