// SPDX-License-Identifier: Apache-2.0
//! Strict readers of JSON texts and decimal numbers; they return `None` for unusual input.

/// A position in a JSON text.
pub struct Scan<'a> {
    bytes: &'a [u8],
    at: usize,
}

impl<'a> Scan<'a> {
    /// Creates a reader that starts at a position of the text.
    #[must_use]
    pub fn new(bytes: &'a [u8], at: usize) -> Self {
        Self { bytes, at }
    }

    /// Returns where the next byte is.
    #[must_use]
    pub fn position(&self) -> usize {
        self.at
    }

    /// Returns whether the whole text has been read.
    #[must_use]
    pub fn is_at_end(&self) -> bool {
        self.at == self.bytes.len()
    }

    /// Reads the next byte.
    #[inline]
    pub fn byte(&mut self) -> Option<u8> {
        let byte = *self.bytes.get(self.at)?;
        self.at += 1;
        Some(byte)
    }

    /// Reads the next byte, which must be the given one.
    #[inline]
    pub fn eat(&mut self, byte: u8) -> Option<()> {
        (self.byte()? == byte).then_some(())
    }

    /// Reads a string of printable ASCII without escapes.
    #[inline]
    pub fn plain(&mut self) -> Option<&'a [u8]> {
        self.eat(b'"')?;
        let start = self.at;
        loop {
            match self.byte()? {
                b'"' => return Some(&self.bytes[start..self.at - 1]),
                b'\\' => return None,
                0x20..=0x7e => {}
                _ => return None,
            }
        }
    }

    /// Reads the members of an object after its opening brace; `read` is called with each name and
    /// reads the value.
    #[inline]
    pub fn members(
        &mut self,
        mut read: impl FnMut(&mut Self, &'a [u8]) -> Option<()>,
    ) -> Option<()> {
        loop {
            let name = self.plain()?;
            self.eat(b':')?;
            read(self, name)?;
            match self.byte()? {
                b',' => {}
                b'}' => return Some(()),
                _ => return None,
            }
        }
    }

    /// Reads a string and returns the raw bytes between its quotes, which may be invalid JSON.
    #[inline]
    pub fn raw(&mut self) -> Option<&'a [u8]> {
        self.eat(b'"')?;
        let start = self.at;
        loop {
            match self.byte()? {
                b'"' => return Some(&self.bytes[start..self.at - 1]),
                b'\\' => {
                    self.byte()?;
                }
                0..0x20 => return None,
                _ => {}
            }
        }
    }

    /// Reads a string of any characters into `out`, as UTF-8; escapes may only denote ASCII
    /// characters.
    pub fn text(&mut self, out: &mut Vec<u8>) -> Option<()> {
        self.eat(b'"')?;
        let mut is_ascii = true;
        out.clear();
        loop {
            let start = self.at;
            while let Some(&byte) = self.bytes.get(self.at) {
                if byte == b'"' || byte == b'\\' || byte < 0x20 {
                    break;
                }
                is_ascii &= byte < 0x80;
                self.at += 1;
            }
            out.extend_from_slice(&self.bytes[start..self.at]);
            match self.byte()? {
                b'"' => break,
                b'\\' => out.push(self.escaped()?),
                _ => return None,
            }
        }
        (is_ascii || std::str::from_utf8(out).is_ok()).then_some(())
    }

    fn escaped(&mut self) -> Option<u8> {
        Some(match self.byte()? {
            byte @ (b'"' | b'\\' | b'/') => byte,
            b'n' => b'\n',
            b't' => b'\t',
            b'r' => b'\r',
            b'b' => 8,
            b'f' => 12,
            b'u' => {
                let mut value = 0u32;
                for _ in 0..4 {
                    value = value << 4 | char::from(self.byte()?).to_digit(16)?;
                }
                u8::try_from(value).ok().filter(u8::is_ascii)?
            }
            _ => return None,
        })
    }

    /// Reads a number in the form that `decimal` accepts.
    #[inline]
    pub fn number(&mut self) -> Option<i64> {
        let start = self.at;
        while self.bytes.get(self.at).is_some_and(u8::is_ascii_digit) {
            self.at += 1;
        }
        decimal(&self.bytes[start..self.at])
    }
}

/// Parses a number as every client writes it: no sign, no leading zero, at most 18 digits.
#[inline]
#[must_use]
pub fn decimal(text: &[u8]) -> Option<i64> {
    if text.is_empty() || text.len() > 18 || (text[0] == b'0' && text.len() > 1) {
        return None;
    }
    let mut value = 0i64;
    for &byte in text {
        if !byte.is_ascii_digit() {
            return None;
        }
        value = value.wrapping_mul(10).wrapping_add(i64::from(byte - b'0'));
    }
    Some(value)
}

/// Parses a decimal number that fits into 32 bits.
#[inline]
#[must_use]
pub fn decimal32(text: &[u8]) -> Option<i32> {
    i32::try_from(decimal(text)?).ok()
}

/// Returns a four-byte integer; the buffer must be long enough.
#[inline]
#[must_use]
pub fn be32(bytes: &[u8], at: usize) -> u32 {
    u32::from_be_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]])
}

/// Returns an eight-byte integer, or `None` if the buffer is too short.
#[inline]
#[must_use]
pub fn be64(bytes: &[u8], at: usize) -> Option<i64> {
    Some(i64::from_be_bytes(bytes.get(at..at.checked_add(8)?)?.try_into().ok()?))
}

/// Returns where a byte occurs first in a text, eight bytes at a time.
#[inline]
pub(crate) fn find(text: &[u8], byte: u8) -> Option<usize> {
    const ONES: u64 = u64::from_ne_bytes([1; 8]);
    let mut at = 0;
    while let Some(word) = text[at..].first_chunk::<8>() {
        let differences = u64::from_le_bytes(*word) ^ u64::from_ne_bytes([byte; 8]);
        let zeros = differences.wrapping_sub(ONES) & !differences & ONES << 7;
        if zeros != 0 {
            return Some(at + zeros.trailing_zeros() as usize / 8);
        }
        at += 8;
    }
    let found = text[at..].iter().position(|&one| one == byte)?;
    Some(at + found)
}

/// Copies a text to a buffer of the same size. Most texts have a few bytes, for which a call of
/// `memcpy` takes longer.
#[inline]
pub(crate) fn copy(from: &[u8], to: &mut [u8]) {
    match from.len() {
        0 => {}
        length @ 1..4 => {
            to[0] = from[0];
            to[length / 2] = from[length / 2];
            to[length - 1] = from[length - 1];
        }
        4..8 => copy_ends::<4>(from, to),
        8..16 => copy_ends::<8>(from, to),
        16..=32 => copy_ends::<16>(from, to),
        _ => to.copy_from_slice(from),
    }
}

/// Copies the first and the last `N` bytes, which may overlap.
#[inline]
fn copy_ends<const N: usize>(from: &[u8], to: &mut [u8]) {
    let (Some(first), Some(last)) = (from.first_chunk::<N>(), from.last_chunk::<N>()) else {
        return;
    };
    to[..N].copy_from_slice(first);
    to[from.len() - N..from.len()].copy_from_slice(last);
}

#[cfg(test)]
mod tests {
    use super::*;

    fn text(json: &[u8]) -> Option<Vec<u8>> {
        let mut out = vec![];
        Scan::new(json, 0).text(&mut out).map(|()| out)
    }

    #[test]
    fn decimals_have_one_form() {
        assert_eq!(decimal(b"0"), Some(0));
        assert_eq!(decimal(b"999999999999999999"), Some(999_999_999_999_999_999));
        for wrong in ["", "00", "01", "-1", "+1", "1.0", "1e3", " 1", "1000000000000000000"] {
            assert_eq!(decimal(wrong.as_bytes()), None, "{wrong}");
        }
        assert_eq!(decimal32(b"2147483647"), Some(i32::MAX));
        assert_eq!(decimal32(b"2147483648"), None);
    }

    #[test]
    fn the_first_of_equal_bytes_is_found() {
        for size in 0..40 {
            let mut text = vec![0x80; size];
            assert_eq!(find(&text, 0x81), None);
            for at in (0..size).rev() {
                text[at] = 0x81;
                assert_eq!(find(&text, 0x81), Some(at));
                assert_eq!(find(&text, 0x80), (at > 0).then_some(0));
            }
        }
    }

    #[test]
    fn texts_of_all_sizes_are_copied() {
        let text: Vec<u8> = (1..=100).collect();
        for size in 0..text.len() {
            let mut out = vec![0; size + 1];
            copy(&text[..size], &mut out[..size]);
            assert_eq!(out, [&text[..size], &[0]].concat());
        }
    }

    #[test]
    fn escapes_denote_ascii_only() {
        assert_eq!(text(br#""a\"\\\/\n\u0041""#).unwrap(), b"a\"\\/\nA");
        assert_eq!(text("\"\u{e9}\"".as_bytes()).unwrap(), "\u{e9}".as_bytes());
        for wrong in [&br#""\u00e9""#[..], br#""\x""#, br#""open"#, b"\"\xff\"", b"\"\n\""] {
            assert_eq!(text(wrong), None);
        }
    }

    #[test]
    fn members_end_with_the_brace() {
        let read = |json: &[u8]| {
            let (mut scan, mut count) = (Scan::new(json, 1), 0);
            scan.members(|scan, _| {
                count += 1;
                scan.number().map(|_| ())
            })?;
            Some((count, scan.is_at_end()))
        };
        assert_eq!(read(br#"{"a":1,"b":2}"#), Some((2, true)));
        assert_eq!(read(br#"{"a":1}}"#), Some((1, false)));
        for wrong in [&b"{}"[..], br#"{"a":1,}"#, br#"{"a" :1}"#, br#"{"a":1"#, b"{a:1}"] {
            assert_eq!(read(wrong), None);
        }
    }
}
