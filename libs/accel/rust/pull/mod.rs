// SPDX-License-Identifier: Apache-2.0
//! Plain pulls and renewals of queue locks: from the received bytes to the bytes of the answers, in
//! one call per chunk.
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
