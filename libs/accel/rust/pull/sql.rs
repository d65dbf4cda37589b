// SPDX-License-Identifier: Apache-2.0
//! SQL92 conditions on the properties of a record: the native version of
//! `cometmq.broker.filters.sql`.
//!
//! Conditions have three values: true, false, unknown. Python compiles the expression and passes
//! the kinds of conditions that this module supports (`filters/sql/program.py`). If only Python can
//! evaluate a value, the result is `Unsure`.
//!
//! The evaluation counts its work in steps of about 1 ns, because peers choose how much there is: a
//! record may have thousands of properties, or numbers of thousands of digits.

use std::cmp::Ordering;

use crate::properties::PAIR_SEPARATOR;
use crate::scan::find;

const MAGIC_V1: u32 = 0xDAA3_20A7;
const FIXED_BYTES: usize = 88;
const HOST_V6_BYTES: usize = 12;
const DIGITS_MAX: usize = 19;

/// Only Python can decide whether the record matches.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Unsure;

/// A comparison.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Test {
    /// `=`
    Equal,
    /// `<`
    Less,
    /// `<=`
    LessOrEqual,
    /// `>`
    Greater,
    /// `>=`
    GreaterOrEqual,
}

impl Test {
    fn holds(self, order: Ordering) -> bool {
        match self {
            Self::Equal => order.is_eq(),
            Self::Less => order.is_lt(),
            Self::LessOrEqual => order.is_le(),
            Self::Greater => order.is_gt(),
            Self::GreaterOrEqual => order.is_ge(),
        }
    }
}

/// A part of an expression; a property is an index into `Program::names`.
#[derive(Clone, Debug, PartialEq)]
pub enum Condition {
    /// AND (`is_and`) or OR.
    Logic(bool, Vec<Condition>),
    /// NOT.
    Not(Box<Condition>),
    /// A property used as a condition: false if it exists.
    Cast(usize),
    /// IS NULL.
    Null(usize),
    /// IN or NOT IN.
    Within(usize, Vec<Vec<u8>>, bool),
    /// `= 'text'`
    Text(usize, Vec<u8>),
    /// `= TRUE` or `= FALSE`
    Truth(usize, bool),
    /// A comparison with an integer, with the lowest and highest value of its type.
    Integer(usize, Test, i64, (i64, i64)),
    /// A comparison with a double.
    Double(usize, Test, f64),
}

/// A compiled expression.
#[derive(Clone, Debug, PartialEq)]
pub struct Program {
    /// The names of the properties that the expression uses.
    pub names: Vec<Vec<u8>>,
    /// The expression.
    pub condition: Condition,
}

enum Failure {
    /// The evaluation fails, so the message does not match.
    NoMatch,
    Unsure,
}

type Values<'a> = [Option<&'a str>];

/// Steps of one condition without its operands.
const CONDITION_STEPS: usize = 4;
/// Steps of one property, not counting its comparisons with names and its value.
const PROPERTY_STEPS: usize = 6;
/// Steps of one name that is compared with a property.
const NAME_STEPS: usize = 2;
/// Bytes that one step compares or searches.
const STEP_BYTES: usize = 8;

impl Program {
    /// Returns whether a record matches; adds the steps that this took to `steps`.
    ///
    /// # Errors
    ///
    /// `Unsure` if only Python can decide.
    pub fn matches(&self, record: &[u8], steps: &mut usize) -> Result<bool, Unsure> {
        let properties = properties_of(record).ok_or(Unsure)?;
        let mut room = [None; 8];
        let values = room.get_mut(..self.names.len()).ok_or(Unsure)?;
        self.read(properties, values, steps).ok_or(Unsure)?;
        match evaluate(&self.condition, values, steps) {
            Ok(verdict) => Ok(verdict == Some(true)),
            Err(Failure::NoMatch) => Ok(false),
            Err(Failure::Unsure) => Err(Unsure),
        }
    }

    /// Finds the last non-empty value of each name.
    fn read<'a>(
        &self,
        properties: &'a [u8],
        values: &mut Values<'a>,
        steps: &mut usize,
    ) -> Option<()> {
        let mut rest = properties;
        *steps += properties.len() / STEP_BYTES;
        while !rest.is_empty() {
            let end = find(rest, PAIR_SEPARATOR).unwrap_or(rest.len());
            *steps += PROPERTY_STEPS + NAME_STEPS * self.names.len();
            for (name, value) in self.names.iter().zip(values.iter_mut()) {
                let found = name.len() + 1;
                if found <= end && rest[found - 1] == 1 && rest.starts_with(name) {
                    if found < end {
                        *value = Some(std::str::from_utf8(&rest[found..end]).ok()?);
                    }
                    break;
                }
            }
            rest = rest.get(end + 1..).unwrap_or_default();
        }
        Some(())
    }
}

/// The properties of a record with the usual layout.
fn properties_of(record: &[u8]) -> Option<&[u8]> {
    if record.get(4..8)? != MAGIC_V1.to_be_bytes() {
        return None;
    }
    let hosts = record.get(39)? & 0x30;
    let fixed = FIXED_BYTES + HOST_V6_BYTES * hosts.count_ones() as usize;
    let body_bytes = i32::from_be_bytes(record.get(fixed - 4..fixed)?.try_into().ok()?);
    let topic = fixed.checked_add(usize::try_from(body_bytes).ok()?)?;
    let end = topic + 1 + usize::from(*record.get(topic)?);
    let length = i16::from_be_bytes(record.get(end..end + 2)?.try_into().ok()?);
    record.get(end + 2..end + 2 + usize::try_from(length).ok()?)
}

fn evaluate(
    condition: &Condition,
    values: &Values,
    steps: &mut usize,
) -> Result<Option<bool>, Failure> {
    *steps += CONDITION_STEPS;
    Ok(match condition {
        Condition::Logic(is_and, parts) => {
            let mut result = Some(*is_and);
            for part in parts {
                match evaluate(part, values, steps)? {
                    Some(value) if value != *is_and => return Ok(Some(value)),
                    Some(_) => {}
                    None => result = None,
                }
            }
            result
        }
        Condition::Not(part) => evaluate(part, values, steps)?.map(|value| !value),
        Condition::Cast(name) => values[*name].map(|_| false),
        Condition::Null(name) => Some(values[*name].is_none()),
        Condition::Within(name, texts, is_negated) => {
            *steps += NAME_STEPS * texts.len();
            values[*name]
                .map(|value| texts.iter().any(|text| text == value.as_bytes()) != *is_negated)
        }
        Condition::Text(name, text) => {
            *steps += text.len() / STEP_BYTES;
            values[*name].map(|value| value.as_bytes() == text)
        }
        Condition::Truth(name, wanted) => {
            values[*name].map(|value| value.eq_ignore_ascii_case("true") == *wanted)
        }
        Condition::Integer(name, test, constant, range) => match values[*name] {
            Some(value) => {
                *steps += value.len();
                Some(test.holds(integer(value, *range)?.cmp(constant)))
            }
            None => None,
        },
        Condition::Double(name, test, constant) => match values[*name] {
            Some(value) => {
                *steps += value.len();
                let number = double(value)? + 0.0; // -0.0 equals 0.0
                Some(test.holds(compare_doubles(number, *constant)))
            }
            None => None,
        },
    })
}

/// Parses a number as Java's `Integer.valueOf` and `Long.valueOf` do.
fn integer(text: &str, (lowest, highest): (i64, i64)) -> Result<i64, Failure> {
    if !text.is_ascii() {
        return Err(Failure::Unsure); // Java takes the digits of other scripts too
    }
    let (is_negative, digits) = match text.as_bytes() {
        [b'-', rest @ ..] => (true, rest),
        [b'+', rest @ ..] | rest => (false, rest),
    };
    if digits.is_empty() || !digits.iter().all(u8::is_ascii_digit) {
        return Err(Failure::NoMatch);
    }
    let zeros = digits.iter().take_while(|&&digit| digit == b'0').count();
    let digits = &digits[zeros..];
    if digits.len() > DIGITS_MAX {
        return Err(Failure::NoMatch);
    }
    let value = digits.iter().fold(0i128, |value, digit| value * 10 + i128::from(digit - b'0'));
    let value = if is_negative { -value } else { value };
    match i64::try_from(value) {
        Ok(value) if (lowest..=highest).contains(&value) => Ok(value),
        _ => Err(Failure::NoMatch),
    }
}

/// Parses a number as Java's `Double.valueOf` does; the hexadecimal form is left to Python.
fn double(text: &str) -> Result<f64, Failure> {
    if !text.is_ascii() {
        return Err(Failure::Unsure);
    }
    let text = text.trim_matches(|char| char <= ' ');
    let unsigned = text.strip_prefix(['+', '-']).unwrap_or(text);
    let is_negative = text.starts_with('-');
    let value = match unsigned {
        "NaN" => f64::NAN,
        "Infinity" => f64::INFINITY,
        _ if unsigned.starts_with("0x") || unsigned.starts_with("0X") => {
            return Err(Failure::Unsure);
        }
        _ => decimal_double(unsigned).ok_or(Failure::NoMatch)?,
    };
    Ok(if is_negative { -value } else { value })
}

/// Parses digits with at most one point, an optional exponent and an optional type suffix.
fn decimal_double(text: &str) -> Option<f64> {
    let text = text.strip_suffix(['f', 'F', 'd', 'D']).unwrap_or(text);
    let (mantissa, exponent) = match text.find(['e', 'E']) {
        Some(at) => (&text[..at], Some(&text[at + 1..])),
        None => (text, None),
    };
    let (whole, part) = mantissa.split_once('.').unwrap_or((mantissa, ""));
    let is_number = |digits: &str| digits.bytes().all(|byte| byte.is_ascii_digit());
    let exponent_digits =
        exponent.map_or("0", |digits| digits.strip_prefix(['+', '-']).unwrap_or(digits));
    if whole.len() + part.len() == 0
        || exponent_digits.is_empty()
        || ![whole, part, exponent_digits].into_iter().all(is_number)
    {
        return None;
    }
    text.parse().ok()
}

/// Compares in Java's order: -0.0 before 0.0; `NaN` is last and equal to itself.
fn compare_doubles(left: f64, right: f64) -> Ordering {
    let rank = |number: f64| match number {
        _ if number.is_nan() => 2,
        _ => i32::from(number != 0.0 || number.is_sign_positive()),
    };
    left.partial_cmp(&right)
        .filter(|order| order.is_ne())
        .unwrap_or_else(|| rank(left).cmp(&rank(right)))
}

#[cfg(test)]
mod tests {
    use super::*;

    const INT: (i64, i64) = (i32::MIN as i64, i32::MAX as i64);

    fn record(properties: &str) -> Vec<u8> {
        let mut record = vec![0; FIXED_BYTES];
        record[4..8].copy_from_slice(&MAGIC_V1.to_be_bytes());
        record.extend([1, b'T']);
        record.extend((properties.len() as u16).to_be_bytes());
        record.extend(properties.bytes());
        record
    }

    fn verdict(condition: Condition, properties: &str) -> Result<bool, Unsure> {
        let program = Program { names: vec![b"a".to_vec(), b"b".to_vec()], condition };
        program.matches(&record(properties), &mut 0)
    }

    #[test]
    fn the_last_value_that_is_not_empty_counts() {
        let condition = Condition::Text(0, b"3".to_vec());
        for (properties, wanted) in [
            ("a\u{1}3", true),
            ("a\u{1}2\u{2}a\u{1}3\u{2}a\u{1}", true),
            ("a\u{1}3\u{2}a\u{1}2", false),
            ("aa\u{1}3\u{2}a\u{2}\u{1}3", false),
            ("", false),
        ] {
            assert_eq!(verdict(condition.clone(), properties), Ok(wanted), "{properties:?}");
        }
    }

    #[test]
    fn numbers_are_those_of_java() {
        let more = |text: &str| verdict(Condition::Integer(0, Test::Greater, 6, INT), text);
        for (value, wanted) in [
            ("7", Ok(true)),
            ("+00000000000000000000007", Ok(true)),
            ("6", Ok(false)),
            ("7.0", Ok(false)),
            ("2147483648", Ok(false)),
            ("99999999999999999999", Ok(false)),
            (" 7", Ok(false)),
            ("\u{0667}", Err(Unsure)),
        ] {
            assert_eq!(more(&format!("a\u{1}{value}")), wanted, "{value:?}");
        }
        let near = |text: &str| verdict(Condition::Double(0, Test::GreaterOrEqual, 1.5), text);
        for (value, wanted) in [
            (" 1.5f ", Ok(true)),
            ("15e-1", Ok(true)),
            ("NaN", Ok(true)),
            (".5", Ok(false)),
            ("-Infinity", Ok(false)),
            ("inf", Ok(false)),
            ("1e", Ok(false)),
            ("1.5.5", Ok(false)),
            ("0x1p3", Err(Unsure)),
        ] {
            assert_eq!(near(&format!("a\u{1}{value}")), wanted, "{value:?}");
        }
        assert_eq!(compare_doubles(-0.0, 0.0), Ordering::Less);
        assert_eq!(compare_doubles(f64::NAN, f64::NAN), Ordering::Equal);
    }

    #[test]
    fn unknown_is_neither_true_nor_false() {
        let unknown = || Condition::Text(1, b"x".to_vec());
        let known = || Condition::Text(0, b"1".to_vec());
        let and = Condition::Logic(true, vec![known(), unknown()]);
        let or = Condition::Logic(false, vec![unknown(), known()]);
        let properties = "a\u{1}1";
        assert_eq!(verdict(and, properties), Ok(false));
        assert_eq!(verdict(or, properties), Ok(true));
        assert_eq!(verdict(Condition::Not(Box::new(unknown())), properties), Ok(false));
        assert_eq!(verdict(Condition::Not(Box::new(known())), properties), Ok(false));
        assert_eq!(verdict(Condition::Null(1), properties), Ok(true));
    }

    #[test]
    fn steps_grow_with_operators_and_bytes() {
        let equal = || Condition::Integer(0, Test::Equal, 6, INT);
        let program = |count| Program {
            names: vec![b"a".to_vec()],
            condition: Condition::Logic(false, (0..count).map(|_| equal()).collect()),
        };
        let steps = |count: usize, properties: &str| {
            let mut steps = 0;
            assert_eq!(program(count).matches(&record(properties), &mut steps), Ok(false));
            steps
        };
        let digits = format!("a\u{1}{}7", "0".repeat(10_000));
        assert!(steps(1, "a\u{1}7") < 100);
        assert!(steps(1, &digits) > 10_000);
        assert!(steps(60, &digits) > 600_000);
        assert!(steps(1, &"b\u{1}c\u{2}".repeat(5_000)) > 40_000);
    }

    #[test]
    fn a_damaged_record_is_left_to_python() {
        let program = Program { names: vec![], condition: Condition::Logic(true, vec![]) };
        assert_eq!(program.matches(&record(""), &mut 0), Ok(true));
        for end in 0..record("").len() {
            assert_eq!(program.matches(&record("")[..end], &mut 0), Err(Unsure));
        }
    }
}
