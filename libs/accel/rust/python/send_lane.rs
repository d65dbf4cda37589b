// SPDX-License-Identifier: Apache-2.0
//! The class `SendLane`, with which connections stage requests until a commit places them
//! (`send_runs.rs`).

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::sync::Arc;

use pyo3::exceptions::{PyIndexError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyString};

use super::access::LaneAccounts;
use super::answers::LaneAnswers;
use super::pull_lane::PullLane;
use crate::answers::Template;
use crate::halves::Transactions;
use crate::host::Host;
use crate::pull::{self, answer::PlainTemplate};
use crate::send_back_header::{BackGroup, Backs};
use crate::stage::{Kind, Limits, Origin, Part, Stage};
use crate::text::hex_host;

/// Maximum number of queues of all topics, each of four bytes; beyond it, all topics are forgotten
/// and learned again.
const QUEUES_MAX: usize = 1 << 20;

/// The plain sends of one commit.
#[pyclass(module = "cometmq.accel")]
pub(crate) struct SendLane {
    pub(crate) stage: Stage,
    pub(crate) template: Arc<Template>,
    /// The names of the topics that `Stage::push_own_topics` adds.
    own_topics: Vec<Py<PyString>>,
    pub(crate) names: Vec<Py<PyString>>,
    pub(crate) chunks: Vec<Py<PyBytes>>,
    pub(crate) peers: Vec<Py<PyAny>>,
    peer_of: HashMap<usize, u32>,
    queue_count: usize,
}

pub(crate) fn array<const N: usize>(bytes: &[u8], what: &str) -> PyResult<[u8; N]> {
    bytes.try_into().map_err(|_| {
        PyValueError::new_err(format!("{what} has {} bytes instead of {N}", bytes.len()))
    })
}

/// Reads a packed host.
pub(crate) fn host(packed: &[u8]) -> PyResult<Host> {
    Host::new(packed).ok_or_else(|| {
        PyValueError::new_err(format!("a host has 8 or 20 bytes, not {}", packed.len()))
    })
}

#[pymethods]
impl SendLane {
    #[new]
    #[pyo3(signature = (*, store_host, cluster, frame_bytes_max, body_bytes_max, batch_count_max, request_bytes_max, json, binary_head, flag, binary_entries, plain_json, plain_binary, delayed, transactions, accounts))]
    #[allow(clippy::too_many_arguments)] // keyword arguments in Python
    fn new(
        store_host: &[u8],
        cluster: &str,
        frame_bytes_max: usize,
        body_bytes_max: usize,
        batch_count_max: usize,
        request_bytes_max: usize,
        json: [Vec<u8>; 5],
        binary_head: &[u8],
        flag: i32,
        binary_entries: Vec<u8>,
        plain_json: [Vec<u8>; 2],
        plain_binary: [Vec<u8>; 2],
        delayed: (Bound<'_, PyString>, Vec<i64>),
        transactions: (Bound<'_, PyString>, Bound<'_, PyString>, &str, i64),
        accounts: Option<&LaneAccounts>,
    ) -> PyResult<Self> {
        let store_host = host(store_host)?;
        let (delay_topic, delays_ms) = delayed;
        let template = Template {
            fields: pull::answer::Template {
                json: json.into(),
                binary_head: array(binary_head, "the head of an answer")?,
                flag,
                remark: vec![],
                names: [&b"msgId"[..], b"queueId", b"queueOffset"].map(Vec::from),
                entries: binary_entries,
            },
            host: hex_host(&store_host),
            plain: PlainTemplate { json: plain_json, binary: plain_binary },
        };
        let limits = Limits { frame_bytes_max, body_bytes_max, batch_count_max, request_bytes_max };
        let mut stage = Stage::new(limits, store_host, cluster.as_bytes());
        if let Some(accounts) = accounts {
            stage.secure(accounts.share());
        }
        stage.delay_in(delay_topic.to_str()?.as_bytes(), delays_ms);
        let mut own_topics = vec![];
        if stage.takes_delayed() {
            own_topics.push(delay_topic.unbind());
        }
        let (half_topic, op_topic, op_text, op_tag_code) = transactions;
        stage.transactions = Some(Transactions::new(
            half_topic.to_str()?.as_bytes(),
            op_topic.to_str()?.as_bytes(),
            op_text.as_bytes(),
            op_tag_code,
        ));
        own_topics.extend([half_topic.unbind(), op_topic.unbind()]);
        Ok(Self {
            stage,
            template: Arc::new(template),
            own_topics,
            names: vec![],
            chunks: vec![],
            peers: vec![],
            peer_of: HashMap::new(),
            queue_count: 0,
        })
    }

    #[getter]
    pub(crate) fn staged_count(&self) -> usize {
        self.stage.requests.len()
    }

    fn learn(&mut self, topic: Bound<'_, PyString>, queue_count: i32) -> PyResult<bool> {
        let queues = usize::try_from(queue_count).unwrap_or(0);
        if self.queue_count + queues > QUEUES_MAX {
            self.forget();
        }
        let is_new = self.stage.learn(topic.to_str()?.as_bytes(), queue_count).is_some();
        if is_new {
            self.name_own_topics(topic.py());
            self.names.push(topic.unbind());
            self.queue_count += queues;
        }
        Ok(is_new)
    }

    fn learn_back(
        &mut self,
        py: Python<'_>,
        group: &str,
        topic: &str,
        queue_count: u64,
        count_max: i32,
        version_min: i32,
    ) -> bool {
        let topic = topic.as_bytes().to_vec();
        let known = BackGroup { topic, queue_count, count_max, version_min };
        let is_new = self.stage.learn_back(group.as_bytes(), known);
        if is_new {
            self.name_own_topics(py);
        }
        is_new
    }

    fn forget_backs(&mut self) {
        self.stage.forget_backs();
    }

    fn forget(&mut self) {
        self.stage.forget();
        self.drop_unused_names();
    }

    fn take_halves(&mut self, takes_halves: bool) {
        if let Some(transactions) = &mut self.stage.transactions {
            transactions.takes_halves = takes_halves;
        }
    }

    fn forget_halves(&mut self) {
        if let Some(transactions) = &mut self.stage.transactions {
            transactions.forget_halves();
        }
    }

    fn keep_halves(&mut self, answers: &mut LaneAnswers) {
        if let Some(transactions) = &mut self.stage.transactions {
            answers.answers.halves.drain(..).for_each(|half| transactions.keep(half));
        }
    }

    fn staged_ends(&self, first: usize, count: usize) -> PyResult<Vec<i64>> {
        let requests = &self.stage.requests[self.staged(first, count)?];
        Ok(requests.iter().filter_map(|request| Some(request.end?.half_offset)).collect())
    }

    #[pyo3(signature = (data, peer, host, count_max, *, takes_sends=true, now_ms=None, pulls=None, backs=None))]
    #[allow(clippy::too_many_arguments)] // keyword arguments in Python
    fn stage(
        &mut self,
        data: Bound<'_, PyBytes>,
        peer: Bound<'_, PyAny>,
        host: &[u8],
        count_max: usize,
        takes_sends: bool,
        now_ms: Option<i64>,
        pulls: Option<PyRefMut<'_, PullLane>>,
        backs: Option<(u64, Bound<'_, PyAny>)>,
    ) -> Vec<(isize, usize, usize, usize)> {
        let origin = if takes_sends { self.origin(&peer, host, now_ms) } else { None };
        let mut pulls = pulls;
        let pulls = pulls.as_mut().map(|lane| &mut lane.pulls);
        let (count, record) = backs.unzip();
        let mut read = |offset: i64| {
            let found = record.as_ref()?.call1((offset,)).ok()?;
            Some(found.cast::<PyBytes>().ok()?.as_bytes().to_vec())
        };
        let backs = count.map(|count| Backs { count, read: &mut read });
        let parts = self.stage.stage(data.as_bytes(), origin, pulls, backs, count_max);
        if parts.iter().any(|part| part.kind == Kind::Sends) {
            self.keep(data, peer);
        }
        let count = |part: &Part| match part.kind {
            Kind::Pulls => -(part.count as isize),
            Kind::Sends | Kind::Other => part.count as isize,
        };
        parts.iter().map(|part| (count(part), part.bytes, part.start, part.end)).collect()
    }

    fn drop_from(&mut self, first: usize) {
        self.stage.drop_from(first);
    }
}

impl SendLane {
    /// Stages a chunk if it contains only plain sends. Returns their number, the bytes of their
    /// bodies and properties, and the number of answers.
    pub(crate) fn stage_whole(
        &mut self,
        peer: &Bound<'_, PyAny>,
        data: &Bound<'_, PyBytes>,
        count_max: usize,
        now_ms: Option<i64>,
    ) -> PyResult<Option<(usize, usize, usize)>> {
        let host = peer.getattr(pyo3::intern!(peer.py(), "host"))?;
        let origin = self.origin(peer, host.cast::<PyBytes>()?.as_bytes(), now_ms);
        let first = self.stage.requests.len();
        let parts = self.stage.stage(data.as_bytes(), origin, None, None, count_max);
        Ok(match parts[..] {
            [part] if part.kind == Kind::Sends && part.end == data.as_bytes().len() => {
                let requests = &self.stage.requests[first..];
                let answers = requests.iter().filter(|one| one.end.is_none()).count();
                self.keep(data.clone(), peer.clone());
                Some((part.count, part.bytes, answers))
            }
            _ => {
                self.stage.drop_from(first);
                None
            }
        })
    }

    /// Removes the staged requests from this number on.
    pub(crate) fn drop_staged(&mut self, first: usize) {
        self.stage.drop_from(first);
    }

    /// Forgets everything staged.
    pub(crate) fn release(&mut self) {
        self.stage.release();
        self.drop_unused_names();
        self.chunks.clear();
        self.peers.clear();
        self.peer_of.clear();
    }

    /// Returns the origin of a chunk, or `None` if records cannot contain the peer's address. The
    /// connection keeps its number if one of its sends is staged already.
    fn origin(&self, peer: &Bound<'_, PyAny>, host: &[u8], now_ms: Option<i64>) -> Option<Origin> {
        let host = Host::new(host)?;
        let chunk = u32::try_from(self.chunks.len()).ok()?;
        let next_peer = u32::try_from(self.peers.len()).ok()?;
        let peer = *self.peer_of.get(&(peer.as_ptr() as usize)).unwrap_or(&next_peer);
        Some(Origin { chunk, peer, host, now_ms })
    }

    /// Keeps the chunk and the connection of staged sends until the commit.
    fn keep(&mut self, data: Bound<'_, PyBytes>, peer: Bound<'_, PyAny>) {
        self.chunks.push(data.unbind());
        let number = self.peers.len() as u32;
        if let Entry::Vacant(entry) = self.peer_of.entry(peer.as_ptr() as usize) {
            entry.insert(number);
            self.peers.push(peer.unbind());
        }
    }

    /// Returns the range of these requests; all of them must be staged.
    pub(crate) fn staged(&self, first: usize, count: usize) -> PyResult<std::ops::Range<usize>> {
        let end = first.checked_add(count).filter(|&end| end <= self.stage.requests.len());
        let end = end.ok_or_else(|| PyIndexError::new_err("more sends than are staged"))?;
        Ok(first..end)
    }

    fn name_own_topics(&mut self, py: Python<'_>) {
        if self.names.is_empty() {
            self.names.extend(self.own_topics.iter().map(|name| name.clone_ref(py)));
        }
    }

    fn drop_unused_names(&mut self) {
        if self.stage.topics.is_empty() {
            self.names.clear();
            self.queue_count = 0;
        }
    }
}
