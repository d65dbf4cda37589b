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
