// SPDX-License-Identifier: Apache-2.0
//! HMAC-SHA1 (RFC 2104) of two messages at a time.
//!
//! Within a message, each of a processor's SHA instructions has to wait for the one before. If the
//! instructions of a second message come in between, a signature takes 0.55 of the time.

use sha1::block_api::compress;
use sha1::{Digest, Sha1};

use crate::scan::copy;

/// Size of a signature.
pub const MAC_BYTES: usize = 20;
const BLOCK_BYTES: usize = 64;
/// Size of the number of bits that ends a padded message.
const LENGTH_BYTES: usize = 8;
/// Larger buffers are freed after use.
const KEPT_BLOCKS_MAX: usize = 1024;
const INITIAL: State = [0x6745_2301, 0xEFCD_AB89, 0x98BA_DCFE, 0x1032_5476, 0xC3D2_E1F0];

type State = [u32; 5];
type Block = [u8; BLOCK_BYTES];

/// A secret: the states of SHA-1 after the two blocks that depend only on it.
#[derive(Clone)]
pub struct Key {
    inner: State,
    outer: State,
}

impl Key {
    /// Creates a key of any size.
    #[must_use]
    pub fn new(secret: &[u8]) -> Self {
        let mut block = [0; BLOCK_BYTES];
        if secret.len() > BLOCK_BYTES {
            block[..MAC_BYTES].copy_from_slice(&Sha1::digest(secret));
        } else {
            block[..secret.len()].copy_from_slice(secret);
        }
        let after = |pad: u8| {
            let mut state = INITIAL;
            compress(&mut state, &[block.map(|byte| byte ^ pad)]);
            state
        };
        Self { inner: after(0x36), outer: after(0x5C) }
    }
}

/// A message, padded for SHA-1; it is reused to avoid allocations.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Message {
    blocks: Vec<Block>,
}

impl Message {
    /// Sets the content, which consists of lists of parts; returns it, so that the caller may
    /// change it.
    pub fn set(&mut self, lists: &[&[&[u8]]]) -> &mut [u8] {
        let parts = lists.iter().copied().flatten();
        let size: usize = parts.clone().map(|part| part.len()).sum();
        let count = (size + 1 + LENGTH_BYTES).div_ceil(BLOCK_BYTES);
        self.blocks.resize(count, [0; BLOCK_BYTES]);
        let bytes = self.blocks.as_flattened_mut();
        let mut at = 0;
        for part in parts {
            copy(part, &mut bytes[at..at + part.len()]);
            at += part.len();
        }
        bytes[at] = 0x80;
        let bits = 8 * (BLOCK_BYTES + size) as u64;
        let end = bytes.len() - LENGTH_BYTES;
        bytes[at + 1..end].fill(0); // the rest of an earlier message
        bytes[end..].copy_from_slice(&bits.to_be_bytes());
        &mut bytes[..size]
    }

    /// Frees the memory of an unusually large message.
    pub fn shrink(&mut self) {
        if self.blocks.capacity() > KEPT_BLOCKS_MAX {
            self.blocks = vec![];
        }
    }
}

/// Returns the signature of a message.
#[must_use]
pub fn sign(key: &Key, message: &Message) -> [u8; MAC_BYTES] {
    let mut inner = key.inner;
    compress(&mut inner, &message.blocks);
    let mut outer = key.outer;
    compress(&mut outer, &[outer_block(inner)]);
    bytes_of(outer)
}

/// Returns the signatures of two messages.
#[must_use]
pub fn sign_two(keys: [&Key; 2], messages: [&Message; 2]) -> [[u8; MAC_BYTES]; 2] {
    let mut inner = keys.map(|key| key.inner);
    compress_two(&mut inner, messages.map(|message| &message.blocks[..]));
    let blocks = inner.map(outer_block);
    let mut outer = keys.map(|key| key.outer);
    compress_two(&mut outer, blocks.each_ref().map(std::slice::from_ref));
    outer.map(bytes_of)
}

/// Returns the padded message of the second hash, whose content is the first hash.
fn outer_block(inner: State) -> Block {
    let mut block = [0; BLOCK_BYTES];
    block[..MAC_BYTES].copy_from_slice(&bytes_of(inner));
    block[MAC_BYTES] = 0x80;
    let bits = 8 * (BLOCK_BYTES + MAC_BYTES) as u64;
    block[BLOCK_BYTES - LENGTH_BYTES..].copy_from_slice(&bits.to_be_bytes());
    block
}

fn bytes_of(state: State) -> [u8; MAC_BYTES] {
    let mut bytes = [0; MAC_BYTES];
    for (out, word) in bytes.chunks_exact_mut(4).zip(state) {
        out.copy_from_slice(&word.to_be_bytes());
    }
    bytes
}

/// Continues two hashes.
fn compress_two(states: &mut [State; 2], blocks: [&[Block]; 2]) {
    let count = blocks[0].len().min(blocks[1].len());
    let [(both, rest), (other_both, other_rest)] = blocks.map(|blocks| blocks.split_at(count));
    if !in_turn(states, [both, other_both]) {
        compress(&mut states[0], both);
        compress(&mut states[1], other_both);
    }
    compress(&mut states[0], rest);
    compress(&mut states[1], other_rest);
}

/// Continues two hashes with blocks of the same number, if the processor has instructions for it;
/// returns whether it has.
#[cfg(target_arch = "x86_64")]
#[allow(unsafe_code)]
fn in_turn(states: &mut [State; 2], blocks: [&[Block]; 2]) -> bool {
    let has_instructions = is_x86_feature_detected!("sha")
        && is_x86_feature_detected!("ssse3")
        && is_x86_feature_detected!("sse4.1");
    if has_instructions {
        // SAFETY: the processor has all features that the function is compiled for.
        unsafe { x86::compress_in_turn(states, blocks) };
    }
    has_instructions
}

#[cfg(not(target_arch = "x86_64"))]
fn in_turn(_states: &mut [State; 2], _blocks: [&[Block]; 2]) -> bool {
    false
}

#[cfg(target_arch = "x86_64")]
mod x86 {
    use std::arch::x86_64::{
        __m128i, _mm_add_epi32, _mm_extract_epi32, _mm_set_epi32, _mm_set_epi64x,
        _mm_setzero_si128, _mm_sha1msg1_epu32, _mm_sha1msg2_epu32, _mm_sha1nexte_epu32,
        _mm_sha1rnds4_epu32, _mm_shuffle_epi8, _mm_xor_si128,
    };

    use super::{Block, State};

    /// One of the two hashes; `abcd` has its words in reverse order.
    #[derive(Clone, Copy)]
    struct Lane {
        abcd: __m128i,
        e: __m128i,
        words: [__m128i; 4],
    }

    /// Four rounds of both hashes; computes the message words of the group after the next three.
    macro_rules! group {
        ($lanes:ident, $number:literal) => {
            for lane in &mut $lanes {
                let words = &mut lane.words;
                if $number >= 4 {
                    let mixed = _mm_xor_si128(
                        _mm_sha1msg1_epu32(words[$number & 3], words[($number + 1) & 3]),
                        words[($number + 2) & 3],
                    );
                    words[$number & 3] = _mm_sha1msg2_epu32(mixed, words[($number + 3) & 3]);
                }
                let added = if $number == 0 {
                    _mm_add_epi32(lane.e, words[0])
                } else {
                    _mm_sha1nexte_epu32(lane.e, words[$number & 3])
                };
                lane.e = lane.abcd;
                lane.abcd = _mm_sha1rnds4_epu32(lane.abcd, added, $number / 5);
            }
        };
    }

    #[target_feature(enable = "sha,sse2,ssse3,sse4.1")]
    pub(super) fn compress_in_turn(states: &mut [State; 2], blocks: [&[Block]; 2]) {
        let mut lanes = states.map(|state| {
            let state = state.map(u32::cast_signed);
            Lane {
                abcd: _mm_set_epi32(state[0], state[1], state[2], state[3]),
                e: _mm_set_epi32(state[4], 0, 0, 0),
                words: [_mm_setzero_si128(); 4],
            }
        });
        for pair in blocks[0].iter().zip(blocks[1]) {
            let before = lanes;
            for (lane, block) in lanes.iter_mut().zip([pair.0, pair.1]) {
                for (word, bytes) in lane.words.iter_mut().zip(block.chunks_exact(16)) {
                    *word = load(bytes);
                }
            }
            group!(lanes, 0);
            group!(lanes, 1);
            group!(lanes, 2);
            group!(lanes, 3);
            group!(lanes, 4);
            group!(lanes, 5);
            group!(lanes, 6);
            group!(lanes, 7);
            group!(lanes, 8);
            group!(lanes, 9);
            group!(lanes, 10);
            group!(lanes, 11);
            group!(lanes, 12);
            group!(lanes, 13);
            group!(lanes, 14);
            group!(lanes, 15);
            group!(lanes, 16);
            group!(lanes, 17);
            group!(lanes, 18);
            group!(lanes, 19);
            for (lane, before) in lanes.iter_mut().zip(before) {
                lane.abcd = _mm_add_epi32(lane.abcd, before.abcd);
                lane.e = _mm_sha1nexte_epu32(lane.e, before.e);
            }
        }
        for (state, lane) in states.iter_mut().zip(lanes) {
            *state = [
                _mm_extract_epi32(lane.abcd, 3),
                _mm_extract_epi32(lane.abcd, 2),
                _mm_extract_epi32(lane.abcd, 1),
                _mm_extract_epi32(lane.abcd, 0),
                _mm_extract_epi32(lane.e, 3),
            ]
            .map(i32::cast_unsigned);
        }
    }

    /// Loads four words in reverse order.
    #[inline]
    #[target_feature(enable = "sse2,ssse3")]
    fn load(bytes: &[u8]) -> __m128i {
        let half = |at: usize| {
            let mut half = [0; 8];
            half.copy_from_slice(&bytes[at..at + 8]);
            i64::from_le_bytes(half)
        };
        let reversed = _mm_set_epi64x(0x0001_0203_0405_0607, 0x0809_0A0B_0C0D_0E0F);
        _mm_shuffle_epi8(_mm_set_epi64x(half(8), half(0)), reversed)
    }
}

#[cfg(test)]
mod tests {
    use hmac::{Hmac, KeyInit, Mac};

    use super::*;

    fn expected(secret: &[u8], content: &[u8]) -> Vec<u8> {
        let mut mac = Hmac::<Sha1>::new_from_slice(secret).expect("any secret is a key");
        mac.update(content);
        mac.finalize().into_bytes().to_vec()
    }

    /// Returns some bytes that differ with `seed`.
    fn bytes(seed: usize, size: usize) -> Vec<u8> {
        (0..size).map(|at| (at * 31 + seed * 7 + at * at / 13) as u8).collect()
    }

    #[test]
    fn signatures_of_all_sizes_are_those_of_the_reference() {
        let mut messages = [Message::default(), Message::default()];
        for size in 0..300 {
            let secrets = [bytes(size, [0, 9, 64, 65, 200][size % 5]), bytes(size + 1, 20)];
            let contents = [bytes(size, size), bytes(size, size * 7 % 300)];
            let keys = [Key::new(&secrets[0]), Key::new(&secrets[1])];
            for (message, content) in messages.iter_mut().zip(&contents) {
                let (first, rest) = content.split_at(content.len().min(size % 11));
                message.set(&[&[first, b""], &[rest]]);
            }
            let wanted = [0, 1].map(|one: usize| expected(&secrets[one], &contents[one]));
            let found = sign_two([&keys[0], &keys[1]], [&messages[0], &messages[1]]);
            assert_eq!(found.map(Vec::from), wanted);
            let found = [0, 1].map(|one: usize| sign(&keys[one], &messages[one]).to_vec());
            assert_eq!(found, wanted);
        }
    }
}
