// SPDX-License-Identifier: Apache-2.0
//! The class `PullLane` of the module `cometmq.accel._native`.

use std::collections::HashMap;

use pyo3::buffer::PyBuffer;
use pyo3::exceptions::{PyIndexError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyDict, PyList, PyString, PyTuple};

use crate::pull::answer::{PlainTemplate, Template};
use crate::pull::select::{Caches, ENTRY_BYTES, Filter, Limits, LogView, Queue, Source};
use crate::pull::sql::{Condition, Program, Test};
use crate::pull::stage::{Context, Pull, Pulls, Reader, Staged, answer};
use crate::python::array;

const QUEUES_MAX: usize = 1 << 14;
const NAMES_MAX: usize = 8;
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
    template: Template,
    plain: PlainTemplate,
    limits: Limits,
    caches: Caches,
    view: Option<Py<PyAny>>,
    log: LogView,
    queues: Py<PyDict>,
    known: HashMap<usize, Known>,
    next_number: usize,
    read_log: Py<PyAny>,
    read_entries: Py<PyAny>,
    out: Vec<u8>,
    body: Vec<u8>,
}

#[derive(Clone, Copy, Default)]
struct Total {
    pulls: usize,
    messages: usize,
    bytes: usize,
}

/// What Python has to count and to store after a call.
struct Effects<'py> {
    totals: Bound<'py, PyList>,
    commits: Bound<'py, PyList>,
    renewed: Bound<'py, PyList>,
    /// The total of the last reader, which is not in `totals` yet.
    total: Total,
    reader: u32,
}

/// Reads by calling Python, which handles its own errors.
struct PythonSource<'a, 'py> {
    py: Python<'py>,
    view: &'a Bound<'py, PyAny>,
    queue: &'a Bound<'py, PyAny>,
    read_log: &'a Py<PyAny>,
    read_entries: &'a Py<PyAny>,
}

impl PythonSource<'_, '_> {
    fn bytes(&self, found: PyResult<Py<PyAny>>, count: usize) -> Option<Vec<u8>> {
        let found = found.ok().filter(|found| !found.is_none(self.py))?;
        let buffer = PyBuffer::<u8>::get(found.bind(self.py)).ok()?;
        let bytes = buffer.to_vec(self.py).ok()?;
        (bytes.len() == count).then_some(bytes)
    }
}

impl Source for PythonSource<'_, '_> {
    fn log(&mut self, offset: i64, count: usize) -> Option<Vec<u8>> {
        self.bytes(self.read_log.call1(self.py, (self.view, offset, count)), count)
    }

    fn entries(&mut self, _queue: usize, queue_offset: i64, count: usize) -> Option<Vec<u8>> {
        let found = self.read_entries.call1(self.py, (self.queue, queue_offset, count));
        self.bytes(found, count * ENTRY_BYTES)
    }
}

type Answers<'py> = (
    Bound<'py, PyBytes>,
    usize,
    usize,
    usize,
    bool,
    Bound<'py, PyList>,
    Bound<'py, PyList>,
    Bound<'py, PyList>,
    i64,
);

#[pymethods]
impl PullLane {
    #[new]
    #[pyo3(signature = (*, cache_bytes, count_max, bytes_max, memory_bytes, json, binary_head, flag, remark, names, plain_json, plain_binary, queues, read_log, read_entries))]
    #[allow(clippy::too_many_arguments)] // keyword arguments in Python
    fn new(
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
    ) -> PyResult<Self> {
        let binary_head = array(binary_head, "the head of an answer")?;
        Ok(Self {
            pulls: Pulls::default(),
            names: vec![],
            locks: vec![],
            template: Template { json, binary_head, flag, remark, names },
            plain: PlainTemplate { json: plain_json, binary: plain_binary },
            limits: Limits { count_max, bytes_max, memory_bytes },
            caches: Caches::new(cache_bytes),
            view: None,
            log: LogView::default(),
            queues,
            known: HashMap::new(),
            next_number: 0,
            read_log,
            read_entries,
            out: vec![],
            body: vec![],
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
        topic: Bound<'_, PyString>,
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
        self.known.clear();
    }

    /// Returns the start and end of a staged request's frame.
    fn frame(&self, index: usize) -> PyResult<(usize, usize)> {
        let staged = self.pulls.staged.get(index);
        staged.map(Staged::frame).ok_or_else(|| PyIndexError::new_err("no such request"))
    }

    /// Answers staged requests, and stops at one that Python must answer or when the answers exceed
    /// `room` bytes. Filters may examine `budget` entries in total.
    fn answer<'py>(
        &mut self,
        py: Python<'py>,
        first: usize,
        count: usize,
        room: isize,
        view: &Bound<'py, PyAny>,
        mut budget: i64,
    ) -> PyResult<Answers<'py>> {
        let end = first.checked_add(count).filter(|&end| end <= self.pulls.staged.len());
        let end = end.ok_or_else(|| PyIndexError::new_err("more requests than are staged"))?;
        self.look_at(py, view)?;
        let (mut out, mut body) = (std::mem::take(&mut self.out), std::mem::take(&mut self.body));
        out.clear();
        let mut effects = Effects {
            totals: PyList::empty(py),
            commits: PyList::empty(py),
            renewed: PyList::empty(py),
            total: Total::default(),
            reader: 0,
        };
        let (mut at, mut is_odd) = (first, false);
        while at < end && out.len() as isize <= room {
            let is_answered = match self.pulls.staged[at] {
                Staged::Pull(pull) => {
                    let found = self.one(py, &pull, view, (&mut out, &mut body, &mut budget))?;
                    if let Some(found) = found {
                        self.note(py, &pull, found, &mut effects)?;
                    }
                    found.is_some()
                }
                Staged::Renewal(renewal) => {
                    let known = self.pulls.renewals.answer(renewal.number);
                    if let Some(body) = known {
                        self.plain.push(&mut out, renewal.opaque, renewal.serialization, body);
                        effects.renewed.append(&self.locks[renewal.number as usize])?;
                    }
                    known.is_some()
                }
            };
            if !is_answered {
                is_odd = true;
                break;
            }
            at += 1;
        }
        self.add_total(py, &effects)?;
        let frames = PyBytes::new(py, &out);
        if out.capacity() + body.capacity() <= KEPT_BYTES_MAX {
            (self.out, self.body) = (out, body);
        }
        let next = if at < end { self.frame(at)? } else { (0, 0) };
        let Effects { totals, commits, renewed, .. } = effects;
        Ok((frames, at - first, next.0, next.1, is_odd, totals, commits, renewed, budget))
    }
}

impl PullLane {
    /// Answers one pull; returns the number and the size of its messages.
    fn one(
        &mut self,
        py: Python<'_>,
        pull: &Pull,
        view: &Bound<'_, PyAny>,
        rooms: (&mut Vec<u8>, &mut Vec<u8>, &mut i64),
    ) -> PyResult<Option<(usize, usize)>> {
        let Some((_, topic)) = self.names.get(pull.reader as usize) else {
            return Ok(None);
        };
        let key = (topic, pull.asked.queue_id);
        let Some(object) = self.queues.bind(py).get_item(key)? else {
            return Ok(None);
        };
        let queue = self.queue(py, &object)?;
        let mut source = PythonSource {
            py,
            view,
            queue: &object,
            read_log: &self.read_log,
            read_entries: &self.read_entries,
        };
        let Some(reader) = self.pulls.readers.get(pull.reader as usize) else {
            return Ok(None);
        };
        let context = Context { queue, log: &self.log, limits: self.limits, source: &mut source };
        let (out, body, budget) = rooms;
        let found =
            answer(pull, reader, context, &mut self.caches, &self.template, (out, body, budget));
        Ok(found.map(|found| (found.count, body.len())))
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

    /// Adds an answered pull, which found a number and a size of messages, to the effects.
    fn note(
        &self,
        py: Python<'_>,
        pull: &Pull,
        (messages, bytes): (usize, usize),
        effects: &mut Effects<'_>,
    ) -> PyResult<()> {
        if pull.reader != effects.reader {
            self.add_total(py, effects)?;
            (effects.total, effects.reader) = (Total::default(), pull.reader);
        }
        effects.total.pulls += 1;
        effects.total.messages += messages;
        effects.total.bytes += bytes;
        if let Some(offset) = pull.asked.commit_offset {
            let (group, topic) = &self.names[pull.reader as usize];
            effects.commits.append((group, topic, pull.asked.queue_id, offset))?;
        }
        Ok(())
    }

    fn add_total(&self, py: Python<'_>, effects: &Effects<'_>) -> PyResult<()> {
        let total = effects.total;
        if total.pulls == 0 {
            return Ok(());
        }
        let (group, topic) = &self.names[effects.reader as usize];
        effects.totals.append((
            topic.clone_ref(py),
            group.clone_ref(py),
            total.pulls,
            total.messages,
            total.bytes,
        ))
    }
}

/// Returns whether a record matches a condition, or `None` if only Python can decide.
#[pyfunction]
#[allow(clippy::needless_pass_by_value)] // arguments of a Python function are owned
pub fn matches(
    names: Vec<String>,
    condition: &Bound<'_, PyTuple>,
    record: &[u8],
) -> PyResult<Option<bool>> {
    Ok(program(names, condition)?.matches(record).ok())
}

fn program(names: Vec<String>, condition: &Bound<'_, PyTuple>) -> PyResult<Program> {
    if names.len() > NAMES_MAX {
        return Err(PyValueError::new_err(format!("more than {NAMES_MAX} properties")));
    }
    let condition = read_condition(condition, names.len())?;
    Ok(Program { names: names.into_iter().map(String::into_bytes).collect(), condition })
}

/// Parses a condition in the form that `filters/sql/program.py` writes.
fn read_condition(said: &Bound<'_, PyTuple>, name_count: usize) -> PyResult<Condition> {
    let kind: String = said.get_item(0)?.extract()?;
    let name = || {
        let index: usize = said.get_item(1)?.extract()?;
        if index < name_count { Ok(index) } else { Err(PyIndexError::new_err("no such property")) }
    };
    let part = |item: Bound<'_, PyAny>| read_condition(item.cast::<PyTuple>()?, name_count);
    Ok(match kind.as_str() {
        "and" | "or" => {
            let parts = said.get_item(1)?.try_iter()?.map(|item| part(item?));
            Condition::Logic(kind == "and", parts.collect::<PyResult<_>>()?)
        }
        "not" => Condition::Not(Box::new(part(said.get_item(1)?)?)),
        "cast" => Condition::Cast(name()?),
        "null" => Condition::Null(name()?),
        "in" => {
            let texts: Vec<String> = said.get_item(2)?.extract()?;
            let texts = texts.into_iter().map(String::into_bytes).collect();
            Condition::Within(name()?, texts, said.get_item(3)?.extract()?)
        }
        "text" => Condition::Text(name()?, said.get_item(2)?.extract::<String>()?.into_bytes()),
        "truth" => Condition::Truth(name()?, said.get_item(2)?.extract()?),
        "integer" => {
            let range = if said.get_item(4)?.extract()? {
                (i64::MIN, i64::MAX)
            } else {
                (i32::MIN.into(), i32::MAX.into())
            };
            Condition::Integer(name()?, read_test(said)?, said.get_item(3)?.extract()?, range)
        }
        "double" => Condition::Double(name()?, read_test(said)?, said.get_item(3)?.extract()?),
        _ => return Err(PyValueError::new_err(format!("no such condition: {kind}"))),
    })
}

fn read_test(said: &Bound<'_, PyTuple>) -> PyResult<Test> {
    let symbol: String = said.get_item(2)?.extract()?;
    Ok(match symbol.as_str() {
        "==" => Test::Equal,
        "<" => Test::Less,
        "<=" => Test::LessOrEqual,
        ">" => Test::Greater,
        ">=" => Test::GreaterOrEqual,
        _ => return Err(PyValueError::new_err(format!("no such comparison: {symbol}"))),
    })
}
