// SPDX-License-Identifier: Apache-2.0
//! The class `PullLane` of the module `cometmq.accel._native`.

use std::collections::HashMap;
use std::time::Instant;

use pyo3::exceptions::PyIndexError;
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyDict, PyList, PyString, PyTuple};

use super::access::LaneAccounts;
use super::conditions::program;
use super::places::{Places, PythonSource};
use super::send_lane::array;
use crate::pull::answer::{PlainTemplate, Template};
use crate::pull::select::{Caches, Filter};
use crate::pull::stage::{Context, Pull, Pulls, Reader, Renewal, Staged, answer};
use crate::pull::{Found, Limits, LogView, Queue};

const QUEUES_MAX: usize = 1 << 14;
/// Number of queues that a call remembers; above it, searching takes longer than asking Python
/// again.
const CALL_QUEUES_MAX: usize = 8;
/// Larger buffers are freed after the call.
const KEPT_BYTES_MAX: usize = 1 << 20;

struct Known {
    queue: Py<PyAny>,
    life: u64,
    number: usize,
}

#[pyclass(module = "cometmq.accel")]
pub struct PullLane {
    pub(crate) pulls: Pulls,
    names: Vec<(Py<PyString>, Py<PyString>)>,
    /// The locks of each known renewal.
    locks: Vec<Py<PyAny>>,
    template: Template<4>,
    plain: PlainTemplate,
    frame_bytes_max: usize,
    limits: Limits,
    caches: Caches,
    places: Places,
    view: Option<Py<PyAny>>,
    log: LogView,
    queues: Py<PyDict>,
    known: HashMap<usize, Known>,
    next_number: usize,
    read_log: Py<PyAny>,
    read_entries: Py<PyAny>,
    out: Vec<u8>,
}

#[derive(Clone, Copy, Default)]
struct Total {
    pulls: usize,
    messages: usize,
    bytes: usize,
}

/// The state of one call that answers requests: the answers, and the effects for Python.
pub(crate) struct Work<'py> {
    py: Python<'py>,
    view: Bound<'py, PyAny>,
    pub(crate) out: Vec<u8>,
    begun: Instant,
    /// Number of steps that filters may still take.
    budget: i64,
    totals: Bound<'py, PyList>,
    commits: Bound<'py, PyList>,
    renewed: Bound<'py, PyList>,
    /// The total of the last reader, which is not in `totals` yet.
    total: Total,
    reader: u32,
    /// The first queues that this call has read, and their topics. Queues do not change during a
    /// call.
    queues: Vec<(usize, i32, Bound<'py, PyAny>, Queue)>,
}

impl Work<'_> {
    /// Whether Python must store changes before the answers are sent.
    pub(crate) fn has_changes(&self) -> bool {
        !(self.commits.is_empty() && self.renewed.is_empty())
    }
}

/// The effects of a call: totals of the readers, offsets to commit, renewed locks, the rest of the
/// budget, and the seconds that it took.
pub(crate) type Effects<'py> =
    (Bound<'py, PyList>, Bound<'py, PyList>, Bound<'py, PyList>, i64, f64);
type Answers<'py> = (Bound<'py, PyBytes>, usize, usize, usize, bool, Effects<'py>);

#[pymethods]
impl PullLane {
    #[new]
    #[pyo3(signature = (*, frame_bytes_max, cache_bytes, count_max, bytes_max, memory_bytes, json, binary_head, flag, remark, names, plain_json, plain_binary, queues, read_log, read_entries, accounts))]
    #[allow(clippy::too_many_arguments)] // keyword arguments in Python
    fn new(
        frame_bytes_max: usize,
        cache_bytes: usize,
        count_max: i64,
        bytes_max: usize,
        memory_bytes: i64,
        json: [Vec<u8>; 6],
        binary_head: &[u8],
        flag: i32,
        remark: Vec<u8>,
        names: [Vec<u8>; 4],
        plain_json: [Vec<u8>; 2],
        plain_binary: [Vec<u8>; 2],
        queues: Py<PyDict>,
        read_log: Py<PyAny>,
        read_entries: Py<PyAny>,
        accounts: Option<&LaneAccounts>,
    ) -> PyResult<Self> {
        let binary_head = array(binary_head, "the head of an answer")?;
        let mut pulls = Pulls::default();
        pulls.access = accounts.map(LaneAccounts::share);
        Ok(Self {
            pulls,
            names: vec![],
            locks: vec![],
            template: Template {
                json: json.into(),
                binary_head,
                flag,
                remark,
                names,
                entries: vec![],
            },
            plain: PlainTemplate { json: plain_json, binary: plain_binary },
            frame_bytes_max,
            limits: Limits { count_max, bytes_max, memory_bytes },
            caches: Caches::new(cache_bytes),
            places: Places::default(),
            view: None,
            log: LogView::default(),
            queues,
            known: HashMap::new(),
            next_number: 0,
            read_log,
            read_entries,
            out: vec![],
        })
    }

    #[getter]
    fn reader_count(&self) -> usize {
        self.pulls.readers.len()
    }

    #[getter]
    fn cached_bytes(&self) -> usize {
        self.caches.bytes()
    }

    #[pyo3(signature = (serialization, head, group, topic, *, queue_count, suggested_id, codes=None, names=None, condition=None))]
    #[allow(clippy::too_many_arguments)] // keyword arguments in Python
    fn learn(
        &mut self,
        serialization: u8,
        head: &[u8],
        group: Bound<'_, PyString>,
        topic: &Bound<'_, PyString>,
        queue_count: i32,
        suggested_id: i64,
        codes: Option<Vec<i64>>,
        names: Option<Vec<String>>,
        condition: Option<&Bound<'_, PyTuple>>,
    ) -> PyResult<bool> {
        let filter = match (codes, names, condition) {
            (Some(mut codes), ..) => {
                codes.sort_unstable();
                Filter::Tags(codes)
            }
            (None, Some(names), Some(condition)) => Filter::Sql(program(names, condition)?),
            _ => Filter::All,
        };
        if self.pulls.is_full() {
            self.forget();
        }
        let reader = Reader { filter, suggested_id, queue_count };
        let is_new = self.pulls.learn(serialization, head, reader);
        if is_new {
            // Interned, so that the readers of a topic have the same object.
            let text = topic.to_str();
            let topic =
                text.map_or_else(|_| topic.clone(), |text| PyString::intern(topic.py(), text));
            self.names.push((group.unbind(), topic.unbind()));
        }
        Ok(is_new)
    }

    fn forget(&mut self) {
        self.pulls.forget();
        self.names.clear();
    }

    fn learn_renewal(
        &mut self,
        serialization: u8,
        head: &[u8],
        body: &[u8],
        answer: &[u8],
        locks: Py<PyAny>,
    ) -> bool {
        if self.pulls.renewals.is_full() {
            self.forget_renewals();
        }
        let is_new = self.pulls.renewals.learn(serialization, head, body, answer);
        if is_new {
            self.locks.push(locks);
        }
        is_new
    }

    fn forget_renewals(&mut self) {
        self.pulls.forget_renewals();
        self.locks.clear();
    }

    fn clear(&mut self) {
        self.caches.clear();
        self.places.clear();
        self.known.clear();
    }

    fn frame(&self, index: usize) -> PyResult<(usize, usize)> {
        let staged = self.pulls.staged.get(index);
        staged.map(Staged::frame).ok_or_else(|| PyIndexError::new_err("no such request"))
    }

    fn answer<'py>(
        &mut self,
        py: Python<'py>,
        first: usize,
        count: usize,
        room: isize,
        view: &Bound<'py, PyAny>,
        budget: i64,
    ) -> PyResult<Answers<'py>> {
        let end = first.checked_add(count).filter(|&end| end <= self.pulls.staged.len());
        let end = end.ok_or_else(|| PyIndexError::new_err("more requests than are staged"))?;
        let out = std::mem::take(&mut self.out);
        let mut work = self.begin(view, budget, out)?;
        let (at, is_odd) = self.answer_staged(&mut work, first, end, room)?;
        let frames = PyBytes::new(py, &work.out);
        let next = if at < end { self.frame(at)? } else { (0, 0) };
        let (mut out, effects) = self.finish(work)?;
        if out.capacity() <= KEPT_BYTES_MAX {
            out.clear();
            self.out = out;
        }
        Ok((frames, at - first, next.0, next.1, is_odd, effects))
    }
}

impl PullLane {
    /// Starts a call, which appends its answers to `out`.
    pub(crate) fn begin<'py>(
        &mut self,
        view: &Bound<'py, PyAny>,
        budget: i64,
        out: Vec<u8>,
    ) -> PyResult<Work<'py>> {
        let py = view.py();
        self.look_at(py, view)?;
        Ok(Work {
            py,
            view: view.clone(),
            out,
            begun: Instant::now(),
            budget,
            totals: PyList::empty(py),
            commits: PyList::empty(py),
            renewed: PyList::empty(py),
            total: Total::default(),
            reader: 0,
            queues: vec![],
        })
    }

    /// Returns the answers of a call, and its effects.
    pub(crate) fn finish<'py>(&self, mut work: Work<'py>) -> PyResult<(Vec<u8>, Effects<'py>)> {
        self.add_total(&mut work)?;
        let Work { out, begun, totals, commits, renewed, budget, .. } = work;
        Ok((out, (totals, commits, renewed, budget, begun.elapsed().as_secs_f64())))
    }

    /// Answers a chunk of at most `count_max` plain requests, and stops at one that Python must
    /// answer or when its answers exceed `room` bytes. Returns the number of answers, and where the
    /// bytes begin that are not answered.
    pub(crate) fn answer_chunk(
        &mut self,
        work: &mut Work<'_>,
        data: &[u8],
        count_max: usize,
        room: isize,
    ) -> PyResult<(usize, usize)> {
        let count = self.pulls.stage_chunk(data, count_max, self.frame_bytes_max);
        let room = (work.out.len() as isize).saturating_add(room);
        let (at, _) = self.answer_staged(work, 0, count, room)?;
        let is_whole = at == count && count > 0;
        let rest = if is_whole {
            data.len()
        } else {
            self.pulls.staged.get(at).map_or(0, |one| one.frame().0)
        };
        Ok((at, rest))
    }

    /// Answers staged requests; returns the index of the first that is not answered, and whether
    /// Python must answer it.
    fn answer_staged(
        &mut self,
        work: &mut Work<'_>,
        first: usize,
        end: usize,
        room: isize,
    ) -> PyResult<(usize, bool)> {
        let mut at = first;
        while at < end && work.out.len() as isize <= room {
            let is_answered = match self.pulls.staged[at] {
                Staged::Pull(pull) => self.answer_pull(work, &pull)?,
                Staged::Renewal(renewal) => self.answer_renewal(work, &renewal)?,
            };
            if !is_answered {
                return Ok((at, true));
            }
            at += 1;
        }
        Ok((at, false))
    }

    fn answer_renewal(&self, work: &mut Work<'_>, renewal: &Renewal) -> PyResult<bool> {
        let Some(body) = self.pulls.renewals.answer(renewal.number) else {
            return Ok(false);
        };
        self.plain.push(&mut work.out, renewal.opaque, renewal.serialization, body);
        work.renewed.append(&self.locks[renewal.number as usize])?;
        Ok(true)
    }

    fn answer_pull(&mut self, work: &mut Work<'_>, pull: &Pull) -> PyResult<bool> {
        let Some((object, queue)) = self.queue_of(work, pull)? else {
            return Ok(false);
        };
        let mut source = PythonSource {
            py: work.py,
            view: &work.view,
            queue: &object,
            read_log: &self.read_log,
            read_entries: &self.read_entries,
            places: &mut self.places,
        };
        let Some(reader) = self.pulls.readers.get(pull.reader as usize) else {
            return Ok(false);
        };
        let Some((_, topic)) = self.names.get(pull.reader as usize) else {
            return Ok(false);
        };
        let Ok(topic) = topic.to_str(work.py) else {
            return Ok(false);
        };
        let context = Context {
            queue,
            topic: topic.as_bytes(),
            log: &self.log,
            limits: self.limits,
            source: &mut source,
        };
        let rooms = (&mut work.out, &mut work.budget);
        let found = answer(pull, reader, context, &mut self.caches, &self.template, rooms);
        if let Some(found) = found {
            self.note(work, pull, found)?;
        }
        Ok(found.is_some())
    }

    /// Returns the queue that a pull reads, or `None` if its reader or the queue is unknown.
    fn queue_of<'py>(
        &mut self,
        work: &mut Work<'py>,
        pull: &Pull,
    ) -> PyResult<Option<(Bound<'py, PyAny>, Queue)>> {
        let (py, queue_id) = (work.py, pull.asked.queue_id);
        let Some((_, topic)) = self.names.get(pull.reader as usize) else {
            return Ok(None);
        };
        let name = topic.as_ptr() as usize;
        let known = work.queues.iter().find(|known| (known.0, known.1) == (name, queue_id));
        if let Some((_, _, object, queue)) = known {
            return Ok(Some((object.clone(), *queue)));
        }
        let Some(object) = self.queues.bind(py).get_item((topic, queue_id))? else {
            return Ok(None);
        };
        let queue = self.queue(py, &object)?;
        if work.queues.len() < CALL_QUEUES_MAX {
            work.queues.push((name, queue_id, object.clone(), queue));
        }
        Ok(Some((object, queue)))
    }

    fn queue(&mut self, py: Python<'_>, object: &Bound<'_, PyAny>) -> PyResult<Queue> {
        let number = |name| object.getattr(name)?.extract::<i64>();
        let life = object.getattr(pyo3::intern!(py, "life"))?.extract()?;
        let place = object.as_ptr() as usize;
        let known = self.known.get(&place);
        let known = known.filter(|known| known.queue.is(object) && known.life == life);
        let number_of = if let Some(known) = known {
            known.number
        } else {
            if self.known.len() >= QUEUES_MAX {
                self.clear();
            }
            self.next_number += 1;
            let (queue, number) = (object.clone().unbind(), self.next_number);
            self.known.insert(place, Known { queue, life, number });
            number
        };
        Ok(Queue {
            number: number_of,
            min_offset: number(pyo3::intern!(py, "min_offset"))?,
            max_offset: number(pyo3::intern!(py, "max_offset"))?,
        })
    }

    /// Reads the log view from Python if it has changed.
    fn look_at(&mut self, py: Python<'_>, view: &Bound<'_, PyAny>) -> PyResult<()> {
        if self.view.as_ref().is_some_and(|known| known.is(view)) {
            return Ok(());
        }
        let number = |name| view.getattr(name)?.extract::<i64>();
        let mut damage = vec![];
        for range in view.getattr(pyo3::intern!(py, "damage"))?.try_iter()? {
            let range = range?;
            let (start, end) = (range.getattr("start")?, range.getattr("end")?);
            damage.push((start.extract()?, end.extract()?));
        }
        self.log = LogView {
            first: number(pyo3::intern!(py, "first"))?,
            end: number(pyo3::intern!(py, "end"))?,
            file_size: number(pyo3::intern!(py, "file_size"))?.max(1),
            damage,
        };
        self.view = Some(view.clone().unbind());
        Ok(())
    }

    /// Adds an answered pull to the effects.
    fn note(&self, work: &mut Work<'_>, pull: &Pull, found: Found) -> PyResult<()> {
        if pull.reader != work.reader {
            self.add_total(work)?;
            work.reader = pull.reader;
        }
        work.total.pulls += 1;
        work.total.messages += found.count;
        work.total.bytes += found.bytes;
        if let Some(offset) = pull.asked.commit_offset {
            let (group, topic) = &self.names[pull.reader as usize];
            work.commits.append((group, topic, pull.asked.queue_id, offset))?;
        }
        Ok(())
    }

    fn add_total(&self, work: &mut Work<'_>) -> PyResult<()> {
        let total = std::mem::take(&mut work.total);
        if total.pulls == 0 {
            return Ok(());
        }
        let (group, topic) = &self.names[work.reader as usize];
        work.totals.append((topic, group, total.pulls, total.messages, total.bytes))
    }
}
