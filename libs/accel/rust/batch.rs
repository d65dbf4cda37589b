// SPDX-License-Identifier: Apache-2.0
//! Bodies of batches: their messages, and the properties that are added to each.

use std::ops::Range;

use crate::properties::{PAIR_SEPARATOR, Sent};
use crate::scan::be32;

const PROPERTIES_LENGTH_BYTES: usize = 2;
/// Size of the fields before the body of a batch item: size, magic, CRC, flag, body length.
const ITEM_HEAD_BYTES: usize = 20;

/// Returns the text to append to the properties of each batch item, including WAIT.
pub(crate) fn common_text(sent: &Sent, stored: &[u8]) -> Vec<u8> {
    match sent.wait {
        Some(value) => [b"WAIT\x01", value, &[PAIR_SEPARATOR], stored].concat(),
        None => stored.to_vec(),
    }
}

/// One message of a batch, as positions in the chunk.
pub(crate) struct Item {
    pub(crate) flag: i32,
    pub(crate) body: Range<usize>,
    pub(crate) properties: Range<usize>,
}

/// Iterates over the items of a batch's body; yields `None` where the body is malformed.
pub(crate) struct Items<'a> {
    data: &'a [u8],
    left: Range<usize>,
}

impl<'a> Items<'a> {
    pub(crate) fn of(data: &'a [u8], body: Range<usize>) -> Self {
        Self { data: &data[..body.end], left: body }
    }

    fn read(&self) -> Option<Item> {
        let start = self.left.start;
        let head = self.data.get(start..start + ITEM_HEAD_BYTES)?;
        let flag = be32(head, 12).cast_signed();
        let body_bytes = usize::try_from(be32(head, 16).cast_signed()).ok()?;
        let body = start + ITEM_HEAD_BYTES..start + ITEM_HEAD_BYTES + body_bytes;
        let length = self.data.get(body.end..body.end + PROPERTIES_LENGTH_BYTES)?;
        let length = usize::try_from(i16::from_be_bytes([length[0], length[1]])).ok()?;
        let properties = body.end + PROPERTIES_LENGTH_BYTES;
        let properties = properties..properties + length;
        self.data.get(properties.clone())?;
        Some(Item { flag, body, properties })
    }
}

impl Iterator for Items<'_> {
    type Item = Option<Item>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.left.is_empty() {
            return None;
        }
        let item = self.read();
        self.left.start = item.as_ref().map_or(self.left.end, |item| item.properties.end);
        Some(item)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn item(flag: i32, body: &[u8], properties: &[u8]) -> Vec<u8> {
        let mut data = vec![0; 12];
        data.extend(flag.to_be_bytes());
        data.extend((body.len() as u32).to_be_bytes());
        data.extend(body);
        data.extend((properties.len() as u16).to_be_bytes());
        [data.as_slice(), properties].concat()
    }

    #[test]
    fn items_are_found_in_the_middle_of_a_chunk() {
        let batch = [item(1, b"one", b"k\x01v"), item(2, b"", b"")].concat();
        let chunk = [b"head", batch.as_slice(), b"next"].concat();
        let end = 4 + batch.len();
        let found: Option<Vec<_>> = Items::of(&chunk, 4..end).collect();
        let found = found.expect("whole items");
        assert_eq!(found.iter().map(|one| one.flag).collect::<Vec<_>>(), [1, 2]);
        assert_eq!(&chunk[found[0].body.clone()], b"one");
        assert_eq!(&chunk[found[0].properties.clone()], b"k\x01v");
        assert_eq!(found[1].properties.end, end);
    }

    #[test]
    fn a_torn_or_negative_length_ends_the_items_once() {
        let mut data = item(1, b"one", b"k");
        for end in 1..data.len() {
            let found: Vec<_> = Items::of(&data, 0..end).collect();
            assert!(matches!(found[..], [None]), "{end}");
        }
        data[16] = 0x80;
        assert!(matches!(Items::of(&data, 0..data.len()).next(), Some(None)));
    }
}
