// SPDX-License-Identifier: Apache-2.0
//! SQL92 conditions in the form in which Python passes them (`filters/sql/program.py`).

use pyo3::exceptions::{PyIndexError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::PyTuple;

use crate::pull::sql::{Condition, Program, Test};

const NAMES_MAX: usize = 8;

#[pyfunction]
#[allow(clippy::needless_pass_by_value)] // arguments of a Python function are owned
pub fn matches(
    names: Vec<String>,
    condition: &Bound<'_, PyTuple>,
    record: &[u8],
) -> PyResult<Option<bool>> {
    Ok(program(names, condition)?.matches(record, &mut 0).ok())
}

/// Returns a condition on properties with these names.
pub(crate) fn program(names: Vec<String>, condition: &Bound<'_, PyTuple>) -> PyResult<Program> {
    if names.len() > NAMES_MAX {
        return Err(PyValueError::new_err(format!("more than {NAMES_MAX} properties")));
    }
    let condition = read_condition(condition, names.len())?;
    Ok(Program { names: names.into_iter().map(String::into_bytes).collect(), condition })
}

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
