// SPDX-License-Identifier: Apache-2.0
//! The module `cometmq.accel._native`; its types are described in `_native.pyi`.

mod access;
mod answering;
mod answers;
mod checksums;
mod conditions;
mod due;
mod files;
mod keys;
mod lending;
mod places;
mod placing;
mod pull_lane;
mod range;
mod send_lane;
mod send_runs;
mod sockets;
mod staging;
mod syncs;
mod tls;

use pyo3::panic::PanicException;
use pyo3::prelude::*;

use access::LaneAccounts;
use answers::LaneAnswers;
use due::DueRecords;
use keys::LaneKeys;
use lending::{LentAnswers, Loan};
use pull_lane::PullLane;
use send_lane::SendLane;
use send_runs::LaneRuns;
use sockets::Sockets;
use syncs::LogSyncer;
use tls::{TlsContext, TlsFault, TlsSession};

/// The CRC-32 of the signatures; the broker compares it to tell whether this build fits its calls.
fn interface() -> u32 {
    crc32fast::hash(include_bytes!("../../src/cometmq/accel/_native.pyi"))
}

#[pymodule]
#[pyo3(name = "_native")]
fn native(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add("INTERFACE", interface())?;
    module.add_class::<SendLane>()?;
    module.add_class::<LaneRuns>()?;
    module.add_class::<LaneAnswers>()?;
    module.add_class::<LaneKeys>()?;
    module.add_class::<LaneAccounts>()?;
    module.add_class::<PullLane>()?;
    module.add_class::<DueRecords>()?;
    module.add_class::<Sockets>()?;
    module.add_class::<LogSyncer>()?;
    module.add_class::<LentAnswers>()?;
    module.add_class::<Loan>()?;
    module.add_class::<TlsContext>()?;
    module.add_class::<TlsSession>()?;
    module.add("TlsFault", module.py().get_type::<TlsFault>())?;
    module.add_function(wrap_pyfunction!(checksums::block_sums, module)?)?;
    module.add_function(wrap_pyfunction!(conditions::matches, module)?)?;
    module.add_function(wrap_pyfunction!(due::select_due, module)?)?;
    module.add_function(wrap_pyfunction!(range::read_range, module)?)?;
    module.add_function(wrap_pyfunction!(range::follow_headers, module)?)?;
    module.add_function(wrap_pyfunction!(files::write_files, module)?)?;
    module.add_function(wrap_pyfunction!(files::sync_files, module)?)?;
    module.add("PanicException", module.py().get_type::<PanicException>())
}
