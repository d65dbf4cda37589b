// SPDX-License-Identifier: Apache-2.0
//! Answers plain pulls and renewals of queue locks, with one call for all of a received chunk.
//!
//! A pull is plain if Python has already answered a pull with the same group, topic and
//! subscription, and if everything that it reads is in memory, undamaged and recent. All other
//! pulls are left to Python.

pub mod answer;
pub mod cache;
mod eviction;
mod prefetch;
pub mod recent;
pub mod renewals;
pub mod request;
pub mod select;
pub mod sql;
pub mod stage;

/// The part of the log that readers may see.
#[derive(Clone, Debug, Default)]
pub struct LogView {
    /// Start of the first file.
    pub first: i64,
    /// The confirm offset.
    pub end: i64,
    /// Size of a file.
    pub file_size: i64,
    /// Start and end of each range that is known to be damaged.
    pub damage: Vec<(i64, i64)>,
}

/// The current state of a queue.
#[derive(Clone, Copy, Debug)]
pub struct Queue {
    /// Number of the queue, unique as long as blocks are cached.
    pub number: usize,
    /// Offset of the first message.
    pub min_offset: i64,
    /// Offset of the next message.
    pub max_offset: i64,
}

/// Limits of answers from memory.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// Maximum number of messages.
    pub count_max: i64,
    /// Maximum size; the first message may exceed it.
    pub bytes_max: usize,
    /// Messages farther than this from the end of the log are assumed to be on disk.
    pub memory_bytes: i64,
}

/// The messages selected for an answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Found {
    /// Number of messages.
    pub count: usize,
    /// Size of all records.
    pub bytes: usize,
    /// Physical offset of the first message.
    pub offset: i64,
    /// Queue offset from which to pull next.
    pub next_offset: i64,
}
