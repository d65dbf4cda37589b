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
