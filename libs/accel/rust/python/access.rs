// SPDX-License-Identifier: Apache-2.0
//! The class `LaneAccounts` of the module `cometmq.accel._native`.

use std::collections::HashMap;
use std::sync::Arc;

use pyo3::prelude::*;

use crate::access::{Access, Account};

/// Access key, secret, whether it has all rights, default rights to topics and groups, and rights.
type Row = (Vec<u8>, Vec<u8>, bool, (u8, u8), HashMap<Vec<u8>, u8>);

#[pyclass(module = "cometmq.accel", frozen)]
pub(crate) struct LaneAccounts {
    access: Arc<Access>,
}

#[pymethods]
impl LaneAccounts {
    #[new]
    fn new(rows: Vec<Row>) -> Self {
        let accounts = rows.into_iter().map(|(key, secret, has_all, defaults, rights)| {
            (key, Account::new(&secret, has_all, defaults, rights))
        });
        Self { access: Arc::new(Access::new(accounts.collect())) }
    }
}

impl LaneAccounts {
    pub(crate) fn share(&self) -> Arc<Access> {
        Arc::clone(&self.access)
    }
}
