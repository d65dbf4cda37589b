// SPDX-License-Identifier: Apache-2.0
//! Random requests, and their mutations. The same seed produces the same inputs.

/// A small random number generator (xorshift64*).
pub struct Random(u64);

impl Random {
    /// Creates a generator with this seed.
    #[must_use]
    pub fn new(seed: u64) -> Self {
        Self(seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1)
    }

    /// Returns a number below a bound.
    pub fn below(&mut self, bound: u32) -> u32 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        let high = (self.0.wrapping_mul(0x2545_F491_4F6C_DD1D) >> 32) as u32;
        high % bound.max(1)
    }

    pub fn pick<'a, T: ?Sized>(&mut self, items: &[&'a T]) -> &'a T {
        items[self.below(items.len() as u32) as usize]
    }
}

/// Counters of a run.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Seen {
    /// Frames generated.
    pub frames: u64,
    /// Sends that were staged and built, pulls that were answered, or records that were read.
    pub staged: u64,
    /// Delayed messages that were delivered.
    pub delivered: u64,
    /// Half messages that were ended.
    pub ended: u64,
    /// Messages that were sent back.
    pub sent_back: u64,
}

pub fn binary_head(code: u16, fields: &[(&str, &str)]) -> Vec<u8> {
    let mut ext = vec![];
    for (name, value) in fields.iter().filter(|(_, value)| !value.is_empty()) {
        ext.extend_from_slice(&(name.len() as u16).to_be_bytes());
        ext.extend_from_slice(name.as_bytes());
        ext.extend_from_slice(&(value.len() as u32).to_be_bytes());
        ext.extend_from_slice(value.as_bytes());
    }
    let mut head = code.to_be_bytes().to_vec();
    head.extend_from_slice(&[0, 1, 0x91, 0, 0, 0, 7, 0, 0, 0, 0, 0, 0, 0, 0]);
    head.extend_from_slice(&(ext.len() as u32).to_be_bytes());
    head.extend_from_slice(&ext);
    head
}

pub fn json_head(code: u16, fields: &[(&str, &str)]) -> Vec<u8> {
    let mut head = format!("{{\"code\":{code},\"extFields\":{{");
    for (index, (name, value)) in fields.iter().enumerate() {
        head.push_str(if index > 0 { ",\"" } else { "\"" });
        head.push_str(name);
        head.push_str("\":\"");
        for char in value.chars() {
            match char {
                '"' | '\\' => head.extend(['\\', char]),
                '\n' => head.push_str("\\n"),
                '\u{1}' => head.push_str("\\u0001"),
                '\u{2}' => head.push_str("\\u0002"),
                _ => head.push(char),
            }
        }
        head.push('"');
    }
    head.push_str("},\"flag\":0,\"language\":\"JAVA\",\"opaque\":7,");
    head.push_str("\"serializeTypeCurrentRPC\":\"JSON\",\"version\":401}");
    head.into_bytes()
}

/// Mutates a frame or leaves it unchanged: bit flips, changed values, truncation, repetition.
pub fn mutate(chunk: &mut Vec<u8>, random: &mut Random) {
    for _ in 0..random.below(3) {
        let length = chunk.len() as u32;
        let at = random.below(length) as usize;
        match random.below(6) {
            0 => chunk[at] ^= 1 << random.below(8),
            1 => chunk[at] = *random.pick(&[&0, &1, &2, &b'"', &b'\\', &b'{', &b'}', &0x80, &255]),
            2 => chunk.truncate(at + 1),
            3 => {
                let end = (at + random.below(20) as usize).min(chunk.len());
                chunk.drain(at..end);
            }
            4 => {
                let end = (at + random.below(20) as usize).min(chunk.len());
                let copy = chunk[at..end].to_vec();
                chunk.splice(at..at, copy);
            }
            _ => chunk[at] = chunk[at].wrapping_add(1),
        }
        if chunk.is_empty() {
            chunk.push(0);
        }
    }
}
