//! What chat templates expect of Python: `str()`, `repr()`, `json.dumps` and `strftime`.

use std::fmt::Write;

use minijinja::value::{Kwargs, Rest, ValueKind};
use minijinja::{Error, ErrorKind, State, Value};

/// Nesting of values built inside a template; JSON input is limited by its parser already.
const MAX_DEPTH: usize = 200;

fn too_deep() -> Error {
    Error::new(ErrorKind::InvalidOperation, "value is nested too deeply")
}

/// `repr(float)`: the shortest digits that read back the same; exponent form outside 1e-4..1e16.
pub fn float_repr(value: f64) -> String {
    if value.is_nan() {
        return "nan".to_string();
    }
    if value.is_infinite() {
        return if value > 0.0 { "inf" } else { "-inf" }.to_string();
    }
    let scientific = format!("{value:e}");
    let (mantissa, exponent) = scientific.split_once('e').unwrap_or((&scientific, "0"));
    let exponent: i32 = exponent.parse().unwrap_or(0);
    if (-4..16).contains(&exponent) {
        let fixed = format!("{value}");
        return if fixed.contains('.') {
            fixed
        } else {
            fixed + ".0"
        };
    }
    let sign = if exponent < 0 { '-' } else { '+' };
    format!("{mantissa}e{sign}{:02}", exponent.abs())
}

/// Characters that Python's `repr` escapes beyond control characters: separators other than the
/// space, format characters, surrogates, private use and noncharacters.
fn is_unprintable(c: char) -> bool {
    c.is_control()
        || matches!(c as u32,
            0xa0 | 0xad | 0x600..=0x605 | 0x61c | 0x6dd | 0x70f | 0x8e2 | 0x1680 | 0x180e
            | 0x2000..=0x200f | 0x2028..=0x202f | 0x205f..=0x206f | 0x3000 | 0xe000..=0xf8ff
            | 0xfdd0..=0xfdef | 0xfeff | 0xfff0..=0xfffb | 0xfffe | 0xffff | 0x110bd
            | 0x1d173..=0x1d17a | 0xe0000..=0x10ffff)
}

fn write_str_repr(out: &mut String, text: &str) {
    let quote = if text.contains('\'') && !text.contains('"') {
        '"'
    } else {
        '\''
    };
    out.push(quote);
    for c in text.chars() {
        match c {
            '\\' => out.push_str("\\\\"),
            '\n' => out.push_str("\\n"),
            '\r' => out.push_str("\\r"),
            '\t' => out.push_str("\\t"),
            c if c == quote => {
                out.push('\\');
                out.push(c);
            }
            c if is_unprintable(c) => {
                let code = c as u32;
                let _ = match code {
                    0..=0xff => write!(out, "\\x{code:02x}"),
                    0x100..=0xffff => write!(out, "\\u{code:04x}"),
                    _ => write!(out, "\\U{code:08x}"),
                };
            }
            c => out.push(c),
        }
    }
    out.push(quote);
}

fn write_repr(out: &mut String, value: &Value, depth: usize) -> Result<(), Error> {
    if depth > MAX_DEPTH {
        return Err(too_deep());
    }
    match value.kind() {
        ValueKind::String => write_str_repr(out, value.as_str().unwrap_or_default()),
        ValueKind::Number if !value.is_integer() => {
            out.push_str(&float_repr(f64::try_from(value.clone())?));
        }
        ValueKind::Undefined => out.push_str("Undefined"),
        ValueKind::Seq => {
            let tuple = value.is_tuple();
            out.push(if tuple { '(' } else { '[' });
            let mut count = 0;
            for item in value.try_iter()? {
                if count > 0 {
                    out.push_str(", ");
                }
                write_repr(out, &item, depth + 1)?;
                count += 1;
            }
            if tuple && count == 1 {
                out.push(',');
            }
            out.push(if tuple { ')' } else { ']' });
        }
        ValueKind::Map => {
            out.push('{');
            for (i, key) in value.try_iter()?.enumerate() {
                if i > 0 {
                    out.push_str(", ");
                }
                write_repr(out, &key, depth + 1)?;
                out.push_str(": ");
                write_repr(out, &value.get_item(&key)?, depth + 1)?;
            }
            out.push('}');
        }
        ValueKind::None
        | ValueKind::Bool
        | ValueKind::Number
        | ValueKind::Bytes
        | ValueKind::Iterable
        | ValueKind::Plain
        | ValueKind::Invalid => write!(out, "{value}").map_err(|_| too_deep())?,
        _ => write!(out, "{value}").map_err(|_| too_deep())?,
    }
    Ok(())
}

/// `str(value)`, as `{{ value }}` prints it. An undefined value prints nothing.
pub fn to_str(value: &Value) -> Result<String, Error> {
    match value.kind() {
        ValueKind::Undefined => Ok(String::new()),
        ValueKind::String => Ok(value.as_str().unwrap_or_default().to_string()),
        _ => {
            let mut out = String::new();
            write_repr(&mut out, value, 0)?;
            Ok(out)
        }
    }
}

struct JsonStyle {
    ascii: bool,
    indent: Option<String>,
    item_separator: String,
    key_separator: String,
    sort_keys: bool,
}

fn write_json_str(out: &mut String, text: &str, ascii: bool) {
    out.push('"');
    for c in text.chars() {
        match c {
            '"' => out.push_str("\\\""),
            '\\' => out.push_str("\\\\"),
            '\n' => out.push_str("\\n"),
            '\r' => out.push_str("\\r"),
            '\t' => out.push_str("\\t"),
            '\u{8}' => out.push_str("\\b"),
            '\u{c}' => out.push_str("\\f"),
            c if (c as u32) < 0x20 || (ascii && (c as u32) >= 0x7f) => {
                let mut units = [0u16; 2];
                for unit in c.encode_utf16(&mut units) {
                    let _ = write!(out, "\\u{unit:04x}");
                }
            }
            c => out.push(c),
        }
    }
    out.push('"');
}

fn json_number(value: &Value) -> Result<String, Error> {
    if value.is_integer() {
        return Ok(value.to_string());
    }
    let number = f64::try_from(value.clone())?;
    Ok(if number.is_nan() {
        "NaN".to_string()
    } else if number.is_infinite() {
        if number > 0.0 {
            "Infinity"
        } else {
            "-Infinity"
        }
        .to_string()
    } else {
        float_repr(number)
    })
}

fn json_key(key: &Value) -> Result<String, Error> {
    match key.kind() {
        ValueKind::String => Ok(key.as_str().unwrap_or_default().to_string()),
        ValueKind::Bool => Ok(if key.is_true() { "true" } else { "false" }.to_string()),
        ValueKind::None => Ok("null".to_string()),
        ValueKind::Number => json_number(key),
        other => Err(Error::new(
            ErrorKind::InvalidOperation,
            format!("tojson: keys must be strings or numbers, not {other}"),
        )),
    }
}

fn write_json(
    out: &mut String,
    value: &Value,
    style: &JsonStyle,
    depth: usize,
) -> Result<(), Error> {
    if depth > MAX_DEPTH {
        return Err(too_deep());
    }
    let line_break = |out: &mut String, depth: usize| {
        if let Some(indent) = &style.indent {
            out.push('\n');
            for _ in 0..depth {
                out.push_str(indent);
            }
        }
    };
    match value.kind() {
        ValueKind::None => out.push_str("null"),
        ValueKind::Bool => out.push_str(if value.is_true() { "true" } else { "false" }),
        ValueKind::Number => out.push_str(&json_number(value)?),
        ValueKind::String => {
            write_json_str(out, value.as_str().unwrap_or_default(), style.ascii);
        }
        ValueKind::Seq => {
            out.push('[');
            let mut count = 0;
            for item in value.try_iter()? {
                if count > 0 {
                    out.push_str(&style.item_separator);
                }
                line_break(out, depth + 1);
                write_json(out, &item, style, depth + 1)?;
                count += 1;
            }
            if count > 0 {
                line_break(out, depth);
            }
            out.push(']');
        }
        ValueKind::Map => {
            let mut items = Vec::new();
            for key in value.try_iter()? {
                items.push((json_key(&key)?, value.get_item(&key)?));
            }
            if style.sort_keys {
                items.sort_by(|a, b| a.0.cmp(&b.0));
            }
            out.push('{');
            for (i, (key, item)) in items.iter().enumerate() {
                if i > 0 {
                    out.push_str(&style.item_separator);
                }
                line_break(out, depth + 1);
                write_json_str(out, key, style.ascii);
                out.push_str(&style.key_separator);
                write_json(out, item, style, depth + 1)?;
            }
            if !items.is_empty() {
                line_break(out, depth);
            }
            out.push('}');
        }
        other => {
            return Err(Error::new(
                ErrorKind::InvalidOperation,
                format!("tojson: {other} cannot be written as JSON"),
            ))
        }
    }
    Ok(())
}

/// The `tojson` filter as `transformers` defines it: `json.dumps` without HTML escaping, in the
/// order of the keys, non-ASCII kept.
pub fn tojson(
    state: &State,
    value: &Value,
    positional: Rest<Value>,
    kwargs: Kwargs,
) -> Result<String, Error> {
    if positional.len() > 4 {
        return Err(Error::from(ErrorKind::TooManyArguments));
    }
    let pick = |position: usize, name: &str| -> Result<Option<Value>, Error> {
        match positional.get(position) {
            Some(value) => Ok(Some(value.clone())),
            None => kwargs.get::<Option<Value>>(name),
        }
        .map(|v| v.filter(|v| !v.is_none() && !v.is_undefined()))
    };
    let ascii = pick(0, "ensure_ascii")?.is_some_and(|v| v.is_true());
    let sort_keys = pick(3, "sort_keys")?.is_some_and(|v| v.is_true());
    let indent = match pick(1, "indent")? {
        None => None,
        Some(v) => Some(match v.as_str() {
            Some(text) => text.to_string(),
            None => " ".repeat(
                usize::try_from(i64::try_from(v)?.max(0))
                    .unwrap_or(0)
                    .min(64),
            ),
        }),
    };
    let separators = pick(2, "separators")?;
    kwargs.assert_all_used()?;
    let (item_separator, key_separator) = match separators {
        Some(pair) => {
            let at = |i: usize| -> Result<String, Error> {
                let part = pair.get_item_by_index(i)?;
                part.as_str().map(str::to_string).ok_or_else(|| {
                    Error::new(
                        ErrorKind::InvalidOperation,
                        "tojson: separators must be a pair of strings",
                    )
                })
            };
            (at(0)?, at(1)?)
        }
        None if indent.is_some() => (",".to_string(), ": ".to_string()),
        None => (", ".to_string(), ": ".to_string()),
    };
    let style = JsonStyle {
        ascii,
        indent,
        item_separator,
        key_separator,
        sort_keys,
    };
    let mut out = String::new();
    write_json(&mut out, value, &style, 0)?;
    state.consume_fuel(out.len() as u64 / 64)?;
    Ok(out)
}

/// `datetime.now().strftime(format)` for a local time without zone: `%f` is microseconds, `%z` and
/// `%Z` are empty, the rest is the C library's.
pub fn strftime(unix_seconds: f64, format: &str) -> String {
    let seconds = unix_seconds.floor();
    let micros = ((unix_seconds - seconds) * 1e6) as u32;
    let time = seconds as libc::time_t;
    // SAFETY: an all-zero `tm` is valid; both pointers outlive the call.
    let tm = unsafe {
        let mut tm: libc::tm = std::mem::zeroed();
        libc::localtime_r(&time, &mut tm);
        tm
    };
    let mut plain = String::with_capacity(format.len());
    let mut chars = format.chars();
    while let Some(c) = chars.next() {
        if c != '%' {
            plain.push(c);
            continue;
        }
        match chars.next() {
            Some('f') => {
                let _ = write!(plain, "{micros:06}");
            }
            Some('z' | 'Z') => {}
            Some(other) => {
                plain.push('%');
                plain.push(other);
            }
            None => plain.push('%'),
        }
    }
    // A NUL would end the C string early.
    plain
        .split('\0')
        .map(|part| strftime_part(part, &tm))
        .collect::<Vec<_>>()
        .join("\0")
}

fn strftime_part(format: &str, tm: &libc::tm) -> String {
    if format.is_empty() {
        return String::new();
    }
    // A result of length 0 is either an empty text or a short buffer; the leading mark tells which.
    let Ok(marked) = std::ffi::CString::new(format!("x{format}")) else {
        return String::new();
    };
    let mut buffer = vec![0u8; 256 + format.len() * 4];
    while buffer.len() <= 512 * (format.len() + 1) + 1024 {
        // SAFETY: the buffer is writable for its length, the format is NUL-terminated.
        let written = unsafe {
            libc::strftime(
                buffer.as_mut_ptr().cast(),
                buffer.len(),
                marked.as_ptr(),
                tm,
            )
        };
        if written > 0 {
            return String::from_utf8_lossy(&buffer[1..written]).into_owned();
        }
        buffer.resize(buffer.len() * 2, 0);
    }
    String::new()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn floats_print_as_in_python() {
        // Values from CPython's repr().
        for (value, text) in [
            (1.0, "1.0"),
            (-0.0, "-0.0"),
            (0.1, "0.1"),
            (1e16, "1e+16"),
            (1e15, "1000000000000000.0"),
            (123456789012345680.0, "1.2345678901234568e+17"),
            (0.0001, "0.0001"),
            (0.00001, "1e-05"),
            (1.5e-7, "1.5e-07"),
            (1e300, "1e+300"),
        ] {
            assert_eq!(float_repr(value), text);
        }
    }
}
