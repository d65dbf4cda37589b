// SPDX-License-Identifier: Apache-2.0
//! Reads headers of plain sends that resemble an earlier one.
//!
//! The headers of one client usually differ only in the values of a few fields, which mostly have
//! the same size. Such a header is compared with an earlier one (a shape), in a loop without
//! branches, instead of being parsed. The result is the same.

use crate::access::{Account, PUB};
use crate::frames::Frame;
use crate::header::{
    BORN_TIMESTAMP, Header, PROPERTIES, QUEUE_ID, SIGNATURE, Span, TOPIC, read_header, slice,
};
use crate::scan::{copy, decimal, decimal32};
use crate::signatures::Message;

/// Number of shapes; a shape is found by the size of the header.
const SHAPES: usize = 32;
/// Larger headers are always read.
const HEAD_BYTES_MAX: usize = 4096;
/// Number of headers in a row that do not fit a shape before it is replaced.
const MISSES: u32 = 2;
const JSON: u8 = 0;
/// A value in `Shape::masks`: the byte must equal that of the example.
const FIXED: u8 = 0;
/// A value in `Shape::masks`: the byte may be any character that needs no escape.
const ANY: u8 = 0xFF;

/// An example of a header, and which of its bytes may differ.
#[derive(Default)]
struct Shape {
    example: Vec<u8>,
    masks: Vec<u8>,
    header: Header,
    /// The properties of the example.
    text: Vec<u8>,
    /// Parts of the header that contain properties without escapes, and where these are in `text`.
    pieces: Vec<(Span, u32)>,
    /// The content that the client has signed, without the body.
    content: Vec<u8>,
    /// Parts of the header that are signed and may differ, and where these are in `content`.
    signed_pieces: Vec<(Span, u32)>,
    misses: u32,
}

impl Shape {
    /// Returns whether a header differs from the example only where it may.
    fn fits(&self, head: &[u8]) -> bool {
        let mask_if = |condition| if condition { 0xFF } else { 0u8 };
        let mut wrong = 0;
        for ((&byte, &example), &mask) in head.iter().zip(&self.example).zip(&self.masks) {
            let special = mask_if(byte.wrapping_sub(b' ') > b'~' - b' ')
                | mask_if(byte == b'"')
                | mask_if(byte == b'\\');
            wrong |= ((byte ^ example) & !mask) | (special & mask);
        }
        head.len() == self.example.len() && wrong == 0
    }

    /// Reads a header that has the shape.
    fn read(&self, header: &mut Header, head: &[u8], text: &mut Vec<u8>) -> Option<()> {
        if !self.fits(head) {
            return None;
        }
        header.clone_from(&self.header);
        header.queue_id = decimal32(slice(head, header.span(QUEUE_ID)))?;
        header.born_timestamp = decimal(slice(head, header.span(BORN_TIMESTAMP)))?;
        header.opaque = decimal32(slice(head, header.opaque_at))?;
        if header.topic(head).starts_with(b"%") {
            return None;
        }
        text.clone_from(&self.text);
        copy_pieces(&self.pieces, head, text);
        Some(())
    }

    /// Sets the message that the client of a header of this shape should have signed.
    fn set_signed(&self, message: &mut Message, head: &[u8], body: &[u8]) {
        let content = message.set(&[&[&self.content, body]]);
        copy_pieces(&self.signed_pieces, head, content);
    }

    /// Replaces the shape by that of this header.
    fn learn(&mut self, header: &Header, head: &[u8], text: &[u8]) {
        self.example.clear();
        if head.len() > HEAD_BYTES_MAX || header.opaque_at == (0, 0) || !text.is_ascii() {
            return;
        }
        self.example.extend_from_slice(head);
        self.masks.clear();
        self.masks.resize(head.len(), FIXED);
        let (topic, signature) = (header.span(TOPIC), header.span(SIGNATURE));
        let numbers = [header.span(QUEUE_ID), header.span(BORN_TIMESTAMP), header.opaque_at];
        for (start, end) in [topic, signature].into_iter().chain(numbers) {
            self.masks[start as usize..end as usize].fill(ANY);
        }
        self.header = *header;
        text.clone_into(&mut self.text);
        self.learn_pieces(head);
        self.learn_signed(head);
    }

    fn learn_signed(&mut self, head: &[u8]) {
        self.content.clear();
        self.signed_pieces.clear();
        for (number, part) in self.header.signed(head, &self.text, b"").iter().enumerate() {
            let at = self.content.len() as u32;
            self.content.extend_from_slice(part);
            match number {
                TOPIC | QUEUE_ID | BORN_TIMESTAMP => {
                    self.signed_pieces.push((self.header.span(number), at));
                }
                PROPERTIES => {
                    let pieces = self.pieces.iter();
                    self.signed_pieces.extend(pieces.map(|&(span, own)| (span, at + own)));
                }
                _ => {}
            }
        }
    }

    fn learn_pieces(&mut self, head: &[u8]) {
        self.pieces.clear();
        let (start, end) = self.header.span(PROPERTIES);
        let (mut at, mut text_at) = (start, 0);
        while at < end {
            let rest = slice(head, (at, end));
            let size = rest.iter().position(|&byte| byte == b'\\').unwrap_or(rest.len()) as u32;
            if size > 0 {
                self.pieces.push(((at, at + size), text_at));
                self.masks[at as usize..(at + size) as usize].fill(ANY);
            }
            let escape = if rest.get(size as usize + 1) == Some(&b'u') { 6 } else { 2 };
            (at, text_at) = (at + size + escape, text_at + size + 1);
        }
    }
}

/// Copies parts of a header to their places in a text.
fn copy_pieces(pieces: &[(Span, u32)], head: &[u8], text: &mut [u8]) {
    for &(span, at) in pieces {
        let (piece, at) = (slice(head, span), at as usize);
        copy(piece, &mut text[at..at + piece.len()]);
    }
}

/// A send that was read.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct ReadSend {
    /// The header.
    pub header: Header,
    /// The properties.
    pub text: Vec<u8>,
    /// The content that the client should have signed, if requested.
    pub message: Message,
}

/// The shapes of recent headers.
#[derive(Default)]
pub struct Shapes {
    shapes: Vec<Shape>,
}

impl Shapes {
    /// Reads the header of a frame as `read_header` does, and sets the signed message if wanted.
    #[inline]
    pub fn read(
        &mut self,
        send: &mut ReadSend,
        frame: &Frame,
        data: &[u8],
        sets_message: bool,
    ) -> Option<()> {
        let (head, body) = (frame.head(data), &data[frame.body..frame.end]);
        let ReadSend { header, text, message } = send;
        if self.shapes.is_empty() {
            self.shapes.resize_with(SHAPES, Shape::default);
        }
        let shape = &mut self.shapes[head.len() % SHAPES];
        let is_json = frame.serialization == JSON;
        if is_json && head.len() == shape.example.len() && shape.read(header, head, text).is_some()
        {
            shape.misses = 0;
            if sets_message {
                shape.set_signed(message, head, body);
            }
            return Some(());
        }
        *header = Header::default();
        read_header(header, frame.serialization, head, text)?;
        if sets_message {
            message.set(&[&header.signed(head, text, body)]);
        }
        shape.misses += u32::from(is_json);
        if shape.misses >= MISSES {
            shape.misses = 0;
            shape.learn(header, head, text);
        }
        Some(())
    }
}

/// Buffers for two sends.
#[derive(Default)]
pub(crate) struct Room {
    pub(crate) sends: [ReadSend; 2],
    pub(crate) shapes: Shapes,
    /// The last account that was found to have the right to send: its address in memory, and the
    /// topic.
    pub(crate) allowed: (usize, Vec<u8>),
}

impl Room {
    pub(crate) fn shrink(&mut self) {
        self.sends.iter_mut().for_each(|send| send.message.shrink());
    }

    /// Returns whether an account of the stage may send to a topic.
    pub(crate) fn may_send(
        allowed: &mut (usize, Vec<u8>),
        account: &Account,
        topic: &[u8],
    ) -> bool {
        let address = std::ptr::from_ref(account).addr();
        let is_known = allowed.0 == address && allowed.1 == topic;
        if !is_known && account.may(PUB, topic) {
            allowed.0 = address;
            topic.clone_into(&mut allowed.1);
            return true;
        }
        is_known
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const HEAD: &str = r#"{"code":310,"extFields":{"a":"g","b":"topic","c":"TBW102","d":"4","e":"3","f":"0","g":"1700000000000","h":"7","i":"KEYS\u0001k\n\\1\u0002TAGS\u0001t","j":"2","k":"false","m":"false","AccessKey":"key","Signature":"jg7mfm="},"flag":0,"language":"JAVA","opaque":19,"serializeTypeCurrentRPC":"JSON","version":401}"#;

    const BODY: &[u8] = &[b'x'; 100];

    fn frame(head: &[u8], serialization: u8) -> (Frame, Vec<u8>) {
        let data = [&[0; 8], head, BODY].concat();
        (Frame { start: 0, serialization, body: 8 + head.len(), end: data.len() }, data)
    }

    fn read(shapes: &mut Shapes, head: &[u8]) -> Option<ReadSend> {
        let mut send = read_plainly(HEAD.as_bytes()).unwrap(); // of an earlier frame
        let (frame, data) = frame(head, JSON);
        shapes.read(&mut send, &frame, &data, true).map(|()| send)
    }

    fn read_plainly(head: &[u8]) -> Option<ReadSend> {
        let mut send = ReadSend::default();
        read_header(&mut send.header, JSON, head, &mut send.text)?;
        send.message.set(&[&send.header.signed(head, &send.text, BODY)]);
        Some(send)
    }

    /// Shapes that know a header, and the number of headers that they can have read by it.
    fn shapes_of(head: &[u8]) -> Shapes {
        let mut shapes = Shapes::default();
        for _ in 0..MISSES {
            assert!(read(&mut shapes, head).is_some());
        }
        assert_eq!(shapes.shapes[head.len() % SHAPES].example, head);
        shapes
    }

    fn is_read_by_shape(shapes: &Shapes, head: &[u8]) -> bool {
        shapes.shapes[head.len() % SHAPES].fits(head)
    }

    #[test]
    fn a_header_of_the_shape_is_read_without_the_reader() {
        let mut shapes = shapes_of(HEAD.as_bytes());
        for (from, to) in [
            (r#""b":"topic""#, r#""b":"other""#),
            (r#""e":"3""#, r#""e":"0""#),
            ("1700000000000", "1800000000001"),
            (r"KEYS\u0001k\n\\1", r"KEYT\u0001l\n\\2"),
            ("jg7mfm=", "AAAAAA="),
            (r#""opaque":19"#, r#""opaque":90"#),
        ] {
            let head = HEAD.replace(from, to);
            assert_ne!(head, HEAD);
            assert!(is_read_by_shape(&shapes, head.as_bytes()), "{to}");
            let (found, wanted) =
                (read(&mut shapes, head.as_bytes()), read_plainly(head.as_bytes()));
            assert!(wanted.is_some() && found == wanted, "{to}");
        }
    }

    #[test]
    fn every_changed_byte_gives_what_the_reader_gives() {
        let mut shapes = shapes_of(HEAD.as_bytes());
        let mut head = HEAD.as_bytes().to_vec();
        for at in 0..head.len() {
            for byte in [0, 1, b'"', b'\\', b'%', b' ', b'0', b'9', b'{', b'}', b'~', 0x7F, 0xC3] {
                let own = std::mem::replace(&mut head[at], byte);
                let found = read(&mut shapes, &head);
                assert_eq!(found, read_plainly(&head), "{}", String::from_utf8_lossy(&head));
                head[at] = own;
                assert!(read(&mut shapes, &head).is_some()); // before the shape is replaced
            }
        }
        assert_eq!(shapes.shapes[head.len() % SHAPES].example, HEAD.as_bytes());
    }

    #[test]
    fn a_shape_is_replaced_after_headers_of_another() {
        let other = HEAD.replace(r#""c":"TBW102""#, r#""c":"TBW103""#);
        let mut shapes = shapes_of(HEAD.as_bytes());
        assert!(!is_read_by_shape(&shapes, other.as_bytes()));
        for _ in 0..MISSES {
            assert_eq!(read(&mut shapes, other.as_bytes()), read_plainly(other.as_bytes()));
        }
        assert!(is_read_by_shape(&shapes, other.as_bytes()));
        assert_eq!(read(&mut shapes, HEAD.as_bytes()), read_plainly(HEAD.as_bytes()));
    }

    #[test]
    fn unusual_headers_have_no_shape() {
        let long = HEAD.replace("KEYS", &"K".repeat(HEAD_BYTES_MAX));
        for head in [HEAD.replace(r#""opaque":19,"#, ""), HEAD.replace("KEYS", "K\u{e9}YS"), long] {
            let mut shapes = Shapes::default();
            for _ in 0..=MISSES {
                assert_eq!(read(&mut shapes, head.as_bytes()), read_plainly(head.as_bytes()));
            }
            assert!(shapes.shapes[head.len() % SHAPES].example.is_empty());
        }
    }
}
