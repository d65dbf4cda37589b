// SPDX-License-Identifier: Apache-2.0
//! Frames: the length prefix around every command (layout in `cometmq.remoting.frame`).

use crate::scan::be32;

/// Size of a frame's length and of the word before its header.
pub(crate) const PREFIX_BYTES: usize = 8;

/// One whole frame, as positions in the received bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Frame {
    /// Start of the frame.
    pub start: usize,
    /// Serialization of the header: 0 JSON, 1 ROCKETMQ.
    pub serialization: u8,
    /// Start of the body.
    pub body: usize,
    /// End of the frame.
    pub end: usize,
}

impl Frame {
    /// Returns the bytes of the header.
    #[must_use]
    pub fn head<'a>(&self, data: &'a [u8]) -> &'a [u8] {
        &data[self.start + PREFIX_BYTES..self.body]
    }
}

/// The result of examining the bytes at a position.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Next {
    /// A whole frame.
    Whole(Frame),
    /// Only a part of a frame.
    Incomplete,
    /// Impossible lengths: the peer does not speak the protocol.
    Illegal,
}

/// Examines the bytes at a position.
#[must_use]
pub fn frame_at(data: &[u8], start: usize, frame_bytes_max: usize) -> Next {
    let left = data.len() - start;
    if left < PREFIX_BYTES {
        return Next::Incomplete;
    }
    let (length, word) = (be32(data, start) as usize, be32(data, start + 4));
    let head_bytes = (word & 0xFF_FFFF) as usize;
    if length > frame_bytes_max || length < 4 + head_bytes {
        return Next::Illegal;
    }
    if length > left - 4 {
        return Next::Incomplete;
    }
    Next::Whole(Frame {
        start,
        serialization: (word >> 24) as u8,
        body: start + PREFIX_BYTES + head_bytes,
        end: start + 4 + length,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A frame with this header and a body of two bytes.
    fn frame(serialization: u8, head: &[u8]) -> Vec<u8> {
        let word = u32::from(serialization) << 24 | head.len() as u32;
        let length = (4 + head.len() + 2) as u32;
        [&length.to_be_bytes(), &word.to_be_bytes(), head, b"xy"].concat()
    }

    #[test]
    fn a_frame_is_found_at_its_position() {
        let data = [b"..".to_vec(), frame(1, b"head")].concat();
        let Next::Whole(found) = frame_at(&data, 2, 1000) else { panic!("no frame") };
        assert_eq!(found, Frame { start: 2, serialization: 1, body: 14, end: 16 });
        assert_eq!(found.head(&data), b"head");
    }

    #[test]
    fn every_prefix_of_a_frame_is_incomplete() {
        let data = frame(0, b"head");
        for end in 0..data.len() {
            assert_eq!(frame_at(&data[..end], 0, 1000), Next::Incomplete, "{end}");
        }
    }

    #[test]
    fn impossible_lengths_are_illegal_before_the_rest_arrives() {
        let data = frame(0, b"head");
        assert_eq!(frame_at(&data, 0, 9), Next::Illegal);
        let mut data = data[..PREFIX_BYTES].to_vec();
        data[..4].copy_from_slice(&7u32.to_be_bytes()); // shorter than its header
        assert_eq!(frame_at(&data, 0, 1000), Next::Illegal);
    }
}
