// SPDX-License-Identifier: Apache-2.0
//! The native message path of `CometMQ`: it does for a whole commit at once what Python does for
//! one send at a time, and answers pulls from memory.
//!
//! The core uses neither Python nor I/O. `python` has the classes and functions of `cometmq.accel`.

pub mod access;
pub mod answers;
mod batch;
pub mod commit;
pub mod due;
pub mod envelope;
pub mod frames;
pub mod halves;
pub mod header;
pub mod host;
pub mod index;
pub mod properties;
pub mod pull;
pub mod range;
pub mod scan;
mod send_back;
pub mod send_back_header;
mod sends;
pub mod shapes;
pub mod signatures;
pub mod stage;
pub mod text;
pub mod tls;
pub mod tls_clients;
pub mod transaction_header;
mod transactions;
pub mod watches;

#[cfg(feature = "python")]
mod python;
