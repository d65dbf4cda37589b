// SPDX-License-Identifier: Apache-2.0
//! The class `LaneAccounts` of the module `cometmq.accel._native`.

use std::collections::HashMap;
use std::sync::Arc;

use pyo3::exceptions::PyValueError;
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
    fn new(rows: Vec<Row>) -> PyResult<Self> {
        let mut accounts = HashMap::with_capacity(rows.len());
        for (key, secret, has_all, defaults, rights) in rows {
            let account = Account::new(&secret, has_all, defaults, rights)
                .ok_or_else(|| PyValueError::new_err("a secret cannot be used"))?;
            accounts.insert(key, account);
        }
        Ok(Self { access: Arc::new(Access::new(accounts)) })
    }
}

impl LaneAccounts {
    pub(crate) fn share(&self) -> Arc<Access> {
        Arc::clone(&self.access)
    }
}
