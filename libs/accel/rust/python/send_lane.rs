// SPDX-License-Identifier: Apache-2.0
//! The lane of sends: stages requests and builds what a commit stores.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::sync::Arc;

use pyo3::exceptions::{PyIndexError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyDict, PyList, PyString, PyTuple};

use super::access::LaneAccounts;
use super::answers::LaneAnswers;
use super::keys::LaneKeys;
use super::placing::{Placed, place_requests};
use super::pull_lane::PullLane;
use crate::answers::{Answer, Answers, Ended, Template};
use crate::commit::Place;
use crate::host::Host;
use crate::pull::answer::PlainTemplate;
use crate::send_back::{BackGroup, Backs};
use crate::stage::{Kind, Limits, Origin, Part, Stage};
use crate::transactions::Transactions;

/// Maximum number of queues of all topics, each of four bytes; beyond it, all topics are forgotten
/// and learned again.
const QUEUES_MAX: usize = 1 << 20;

#[pyclass(module = "cometmq.accel")]
pub(crate) struct SendLane {
    stage: Stage,
    template: Arc<Template>,
    /// The names of `Stage::push_own_topics`.
    own_topics: Vec<Py<PyString>>,
    names: Vec<Py<PyString>>,
    chunks: Vec<Py<PyBytes>>,
    peers: Vec<Py<PyAny>>,
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
            json,
            binary_head: array(binary_head, "the head of an answer")?,
            flag,
            binary_entries,
            host: Template::hex_host(&store_host),
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

    /// Accepts messages that a consumer group sends back.
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

    /// Accepts half messages from now on, or leaves them to Python.
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

    /// Keeps the half messages of answers in memory.
    fn keep_halves(&mut self, answers: &mut LaneAnswers) {
        if let Some(transactions) = &mut self.stage.transactions {
            answers.answers.halves.drain(..).for_each(|half| transactions.keep(half));
        }
    }

    /// Returns the half messages that these staged requests end.
    fn staged_ends(&self, first: usize, count: usize) -> PyResult<Vec<i64>> {
        let requests = &self.stage.requests[self.staged(first, count)?];
        Ok(requests.iter().filter_map(|request| Some(request.end?.half_offset)).collect())
    }

    /// Leaves pulls to Python if `pulls` is `None`, sends if `takes_sends` is false, the ends of
    /// transactions if `now_ms` is `None`, and messages sent back if `backs` is `None`.
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

    fn release(&mut self) {
        self.stage.release();
        self.drop_unused_names();
        self.chunks.clear();
        self.peers.clear();
        self.peer_of.clear();
    }

    #[allow(clippy::too_many_arguments)] // once per commit: an object for them costs time
    fn place<'py>(
        &mut self,
        py: Python<'py>,
        first: usize,
        count: usize,
        offset: i64,
        file_end: i64,
        now_ms: i64,
        queues: &Bound<'py, PyDict>,
        create: &Bound<'py, PyAny>,
    ) -> PyResult<Bound<'py, PyTuple>> {
        let requests = self.staged(first, count)?;
        let place = Place { offset, file_end, now_ms };
        let sources = (&self.names[..], &self.chunks[..]);
        let Placed { count, records, entries, built } =
            place_requests(&mut self.stage, sources, requests, place, (queues, create))?;
        let groups = PyList::empty(py);
        let is_only = built.groups.len() == 1;
        for (waits, answers) in built.groups {
            groups.append((waits, Py::new(py, self.own(py, answers, is_only))?))?;
        }
        let keys = Py::new(py, LaneKeys { keys: built.keys })?;
        (count, built.message_count, records, entries, keys, groups).into_pyobject(py)
    }

    /// Returns the answers to requests that were not stored, which therefore have no positions.
    fn unplaced(&self, py: Python<'_>, first: usize, count: usize) -> PyResult<LaneAnswers> {
        let mut answers = Answers::default();
        for request in &self.stage.requests[self.staged(first, count)?] {
            let record = &self.stage.records[request.records.start];
            if let Some(end) = request.end {
                answers.ends.push(Ended { end, topic: record.topic });
                continue;
            }
            let start = answers.places.len();
            answers.places.resize(start + request.records.len(), -1);
            answers.rows.push(Answer {
                peer: request.peer,
                opaque: request.opaque,
                serialization: request.serialization,
                topic: record.topic,
                queue_id: request.queue_id,
                level: record.is_delayed.then_some(record.queue_id),
                queue_offset: -1,
                size: 0,
                places: start..answers.places.len(),
                back: request.back.clone(),
            });
        }
        Ok(self.own(py, answers, false))
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

    /// Returns the origin of a chunk, or `None` if records cannot contain the peer's address. If
    /// one of its sends is staged, the connection keeps its number.
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
    fn staged(&self, first: usize, count: usize) -> PyResult<std::ops::Range<usize>> {
        let end = first.checked_add(count).filter(|&end| end <= self.stage.requests.len());
        let end = end.ok_or_else(|| PyIndexError::new_err("more sends than are staged"))?;
        Ok(first..end)
    }

    fn name_own_topics(&mut self, py: Python<'_>) {
        if self.names.is_empty() {
            self.names.extend(self.own_topics.iter().map(|name| name.clone_ref(py)));
        }
    }

    /// Gives the answers their own references to connections and topics, because answers outlive
    /// the commit. If these are the only answers, they refer to most connections.
    fn own(&self, py: Python<'_>, mut answers: Answers, is_only: bool) -> LaneAnswers {
        let (mut peers, mut topics) = (Owned::default(), Owned::default());
        if is_only {
            peers.items = self.peers.iter().map(|peer| peer.clone_ref(py)).collect();
        }
        for row in &mut answers.rows {
            if !is_only {
                row.peer = peers.number(row.peer, |peer| self.peers[peer].clone_ref(py));
            }
            row.topic = topics.number(row.topic, |topic| self.names[topic].clone_ref(py));
        }
        for one in &mut answers.ends {
            one.topic = topics.number(one.topic, |topic| self.names[topic].clone_ref(py));
        }
        LaneAnswers {
            answers,
            peers: peers.items,
            topics: topics.items,
            template: Arc::clone(&self.template),
        }
    }

    fn drop_unused_names(&mut self) {
        if self.stage.topics.is_empty() {
            self.names.clear();
            self.queue_count = 0;
        }
    }
}

/// The items that the rows refer to, renumbered in the order of first use.
struct Owned<T> {
    items: Vec<T>,
    numbers: HashMap<u32, u32>,
    last: (u32, u32),
}

impl<T> Default for Owned<T> {
    fn default() -> Self {
        Self { items: vec![], numbers: HashMap::new(), last: (u32::MAX, 0) }
    }
}

impl<T> Owned<T> {
    fn number(&mut self, old: u32, item: impl FnOnce(usize) -> T) -> u32 {
        if self.last.0 != old {
            let items = &mut self.items;
            let number = *self.numbers.entry(old).or_insert_with(|| {
                items.push(item(old as usize));
                (items.len() - 1) as u32
            });
            self.last = (old, number);
        }
        self.last.1
    }
}
