//! Methods of Python's `str`, `list` and `dict` that chat templates may call and that minijinja's
//! own compatibility layer lacks.

use minijinja::value::{from_args, Kwargs, Tuple, ValueKind};
use minijinja::{Error, ErrorKind, State, Value};

/// Padding asked for by a template; a line of a prompt is never this wide.
const MAX_WIDTH: usize = 4096;

/// Called for methods that a value does not have itself.
pub fn unknown_method(
    state: &mut State,
    value: &Value,
    method: &str,
    args: &[Value],
) -> Result<Value, Error> {
    let own = match value.kind() {
        ValueKind::String => str_method(value.as_str().unwrap_or_default(), method, args),
        ValueKind::Seq if method == "index" => Some(list_index(value, args)),
        ValueKind::Map if method == "copy" => Some(Ok(value.clone())),
        _ => None,
    };
    own.unwrap_or_else(|| {
        minijinja_contrib::pycompat::unknown_method_callback(state, value, method, args)
    })
}

fn list_index(value: &Value, args: &[Value]) -> Result<Value, Error> {
    let (wanted,): (&Value,) = from_args(args)?;
    for (i, item) in value.try_iter()?.enumerate() {
        if item == *wanted {
            return Ok(Value::from(i));
        }
    }
    Err(invalid(format!("{wanted} is not in list")))
}

fn invalid(message: impl Into<String>) -> Error {
    Error::new(ErrorKind::InvalidOperation, message.into())
}

fn triple(a: &str, b: &str, c: &str) -> Value {
    Value::from(Tuple::from(vec![
        Value::from(a),
        Value::from(b),
        Value::from(c),
    ]))
}

fn str_method(text: &str, method: &str, args: &[Value]) -> Option<Result<Value, Error>> {
    Some(match method {
        "partition" => one_str(args).map(|sep| match text.split_once(sep) {
            Some((before, after)) => triple(before, sep, after),
            None => triple(text, "", ""),
        }),
        "rpartition" => one_str(args).map(|sep| match text.rsplit_once(sep) {
            Some((before, after)) => triple(before, sep, after),
            None => triple("", "", text),
        }),
        "removeprefix" => one_str(args).map(|p| Value::from(text.strip_prefix(p).unwrap_or(text))),
        "removesuffix" => one_str(args).map(|p| Value::from(text.strip_suffix(p).unwrap_or(text))),
        "rsplit" => rsplit(text, args),
        "index" | "rindex" => index(text, method, args),
        "zfill" => zfill(text, args),
        "ljust" | "rjust" | "center" => pad(text, method, args),
        "format" => Err(width_of(widest_field(text)).err()?),
        "swapcase" => Ok(Value::from(swapcase(text))),
        "casefold" => Ok(Value::from(text.to_lowercase().replace('ß', "ss"))),
        _ => return None,
    })
}

fn one_str(args: &[Value]) -> Result<&str, Error> {
    let (text,): (&str,) = from_args(args)?;
    Ok(text)
}

fn rsplit(text: &str, args: &[Value]) -> Result<Value, Error> {
    let (sep, max, kwargs): (Option<&str>, Option<i64>, Kwargs) = from_args(args)?;
    let sep = sep.or(kwargs.get("sep")?);
    let max = max.or(kwargs.get("maxsplit")?).unwrap_or(-1);
    kwargs.assert_all_used()?;
    let limit = usize::try_from(max).unwrap_or(usize::MAX - 1);
    let mut parts: Vec<&str> = match sep {
        Some("") => return Err(invalid("empty separator")),
        Some(sep) => text.rsplitn(limit.saturating_add(1), sep).collect(),
        None => rsplit_whitespace(text, limit),
    };
    parts.reverse();
    Ok(Value::from(
        parts.into_iter().map(Value::from).collect::<Vec<_>>(),
    ))
}

/// Words from the end; what is left after `limit` of them is one more part.
fn rsplit_whitespace(text: &str, limit: usize) -> Vec<&str> {
    let mut rest = text.trim_end();
    let mut parts = Vec::new();
    while !rest.is_empty() {
        if parts.len() == limit {
            parts.push(rest);
            break;
        }
        let at = rest
            .char_indices()
            .rev()
            .find(|(_, c)| c.is_whitespace())
            .map_or(0, |(i, c)| i + c.len_utf8());
        parts.push(&rest[at..]);
        rest = rest[..at].trim_end();
    }
    parts
}

fn index(text: &str, method: &str, args: &[Value]) -> Result<Value, Error> {
    let wanted = one_str(args)?;
    let found = if method == "index" {
        text.find(wanted)
    } else {
        text.rfind(wanted)
    };
    found
        .map(|at| Value::from(text[..at].chars().count()))
        .ok_or_else(|| invalid("substring not found"))
}

fn width_of(width: usize) -> Result<usize, Error> {
    if width > MAX_WIDTH {
        return Err(invalid(format!("width {width} is above {MAX_WIDTH}")));
    }
    Ok(width)
}

/// The largest number within the replacement fields of a `str.format` text: width, precision or index.
fn widest_field(text: &str) -> usize {
    let mut widest = 0;
    let mut inside = 0_usize;
    let mut number = 0_usize;
    let mut chars = text.chars().peekable();
    while let Some(c) = chars.next() {
        number = match c.to_digit(10) {
            Some(digit) => number.saturating_mul(10).saturating_add(digit as usize),
            None => 0,
        };
        match c {
            '{' if inside == 0 && chars.peek() == Some(&'{') => {
                chars.next();
            }
            '{' => inside += 1,
            '}' => inside = inside.saturating_sub(1),
            _ if inside > 0 => widest = widest.max(number),
            _ => {}
        }
    }
    widest
}

fn zfill(text: &str, args: &[Value]) -> Result<Value, Error> {
    let (width,): (usize,) = from_args(args)?;
    let missing = width_of(width)?.saturating_sub(text.chars().count());
    let (sign, digits) = match text.chars().next() {
        Some('+' | '-') => text.split_at(1),
        _ => ("", text),
    };
    Ok(Value::from(format!(
        "{sign}{}{digits}",
        "0".repeat(missing)
    )))
}

fn pad(text: &str, method: &str, args: &[Value]) -> Result<Value, Error> {
    let (width, fill): (usize, Option<&str>) = from_args(args)?;
    let fill = fill.unwrap_or(" ");
    if fill.chars().count() != 1 {
        return Err(invalid(
            "the fill character must be exactly one character long",
        ));
    }
    let missing = width_of(width)?.saturating_sub(text.chars().count());
    let left = match method {
        "ljust" => 0,
        "rjust" => missing,
        // CPython puts the odd one left when the width is odd.
        _ => missing / 2 + (missing & width & 1),
    };
    Ok(Value::from(format!(
        "{}{text}{}",
        fill.repeat(left),
        fill.repeat(missing - left)
    )))
}

fn swapcase(text: &str) -> String {
    text.chars()
        .flat_map(|c| -> Vec<char> {
            if c.is_uppercase() {
                c.to_lowercase().collect()
            } else {
                c.to_uppercase().collect()
            }
        })
        .collect()
}

/// `default(value, fallback, boolean)`, all of which Jinja2 also takes by name.
pub fn default_filter(
    value: &Value,
    fallback: Option<Value>,
    boolean: Option<bool>,
    kwargs: Kwargs,
) -> Result<Value, Error> {
    let fallback = match fallback {
        Some(fallback) => fallback,
        None => kwargs
            .get::<Option<Value>>("default_value")?
            .unwrap_or_else(|| Value::from("")),
    };
    let boolean = match boolean {
        Some(boolean) => boolean,
        None => kwargs.get::<Option<bool>>("boolean")?.unwrap_or(false),
    };
    kwargs.assert_all_used()?;
    let replace = value.is_undefined() || (boolean && !value.is_true());
    Ok(if replace { fallback } else { value.clone() })
}

/// `int(value, default, base)`: what cannot be read gives the default.
pub fn int_filter(
    value: &Value,
    default: Option<Value>,
    base: Option<u32>,
    kwargs: Kwargs,
) -> Result<Value, Error> {
    let default = match default {
        Some(default) => default,
        None => kwargs
            .get::<Option<Value>>("default")?
            .unwrap_or_else(|| Value::from(0)),
    };
    let base = match base {
        Some(base) => base,
        None => kwargs.get::<Option<u32>>("base")?.unwrap_or(10),
    };
    kwargs.assert_all_used()?;
    if let Some(text) = value.as_str() {
        let text = text.trim().replace('_', "");
        let digits = match base {
            2 => text.trim_start_matches("0b"),
            8 => text.trim_start_matches("0o"),
            16 => text.trim_start_matches("0x"),
            _ => &text,
        };
        if !(2..=36).contains(&base) {
            return Ok(default);
        }
        return Ok(match i128::from_str_radix(digits, base) {
            Ok(number) => Value::from(number),
            Err(_) => text
                .parse::<f64>()
                .ok()
                .filter(|f| f.is_finite())
                .map_or(default, |f| Value::from(f as i128)),
        });
    }
    if value.is_integer() {
        return Ok(value.clone());
    }
    Ok(match f64::try_from(value.clone()) {
        Ok(number) if number.is_finite() => Value::from(number as i128),
        _ => default,
    })
}

/// `float(value, default)`: what cannot be read gives the default.
pub fn float_filter(value: &Value, default: Option<Value>, kwargs: Kwargs) -> Result<Value, Error> {
    let default = match default {
        Some(default) => default,
        None => kwargs
            .get::<Option<Value>>("default")?
            .unwrap_or_else(|| Value::from(0.0)),
    };
    kwargs.assert_all_used()?;
    let number = match value.as_str() {
        Some(text) => text.trim().replace('_', "").parse::<f64>().ok(),
        None => f64::try_from(value.clone()).ok(),
    };
    Ok(number.map_or(default, Value::from))
}

/// HTML escaping as Jinja2 spells it.
pub fn escape_filter(value: &Value) -> Result<String, Error> {
    let text = crate::python::to_str(value)?;
    let mut out = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '&' => out.push_str("&amp;"),
            '<' => out.push_str("&lt;"),
            '>' => out.push_str("&gt;"),
            '\'' => out.push_str("&#39;"),
            '"' => out.push_str("&#34;"),
            c => out.push(c),
        }
    }
    Ok(out)
}

/// What Python can iterate over; None is not.
pub fn is_iterable(value: &Value) -> bool {
    !value.is_none() && value.try_iter().is_ok()
}

/// What has a length and items in Python, which texts and dicts do too.
pub fn is_sequence(value: &Value) -> bool {
    matches!(
        value.kind(),
        ValueKind::Seq | ValueKind::Map | ValueKind::String | ValueKind::Undefined
    )
}

/// Functions and macros; Jinja2's undefined can be called (and then fails).
pub fn is_callable(value: &Value) -> bool {
    value.is_undefined() || (value.kind() == ValueKind::Plain && value.as_object().is_some())
}
