//! What is done to a template's text before it is compiled.

use crate::boundary::Failure;

/// The largest templates in use are near 50 KiB.
const MAX_SOURCE_BYTES: usize = 1 << 20;
/// Operators in one tag, or `elif` branches in all: the compiler recurses once for each, on the
/// stack of `COMPILE_STACK_BYTES`.
const MAX_CHAIN: usize = 10_000;
/// Stack for compiling; only what is used becomes resident.
pub const COMPILE_STACK_BYTES: usize = 256 << 20;

/// The next stretch of plain text or whole tag (`{{ }}`, `{% %}`, `{# #}`) of a template.
fn next_piece(source: &str) -> &str {
    let end = if source.starts_with("{#") {
        source.find("#}").map(|e| e + 2)
    } else if source.starts_with("{{") {
        tag_end(source, "}}")
    } else if source.starts_with("{%") {
        tag_end(source, "%}")
    } else {
        let skip = usize::from(source.starts_with('{'));
        source[skip..].find('{').map(|e| e + skip)
    };
    // An unclosed tag is left to the compiler to report.
    &source[..end.unwrap_or(source.len())]
}

/// Length of a tag up to and with `close`, which does not count inside a string literal.
fn tag_end(text: &str, close: &str) -> Option<usize> {
    let bytes = text.as_bytes();
    let mut quote = None;
    let mut i = 2;
    while i < bytes.len() {
        match (quote, bytes[i]) {
            (Some(_), b'\\') => i += 1,
            (Some(q), b) if q == b => quote = None,
            (None, b'\'' | b'"') => quote = Some(bytes[i]),
            (None, _) if bytes[i..].starts_with(close.as_bytes()) => return Some(i + close.len()),
            _ => {}
        }
        i += 1;
    }
    None
}

/// The words of a `{% %}` tag that has nothing but a name; empty for any other piece.
fn bare_name(piece: &str) -> &str {
    piece
        .strip_prefix("{%")
        .and_then(|t| t.strip_suffix("%}"))
        .map_or("", |t| {
            t.trim_matches(|c: char| c == '-' || c == '+' || c.is_whitespace())
        })
}

fn operators(tag: &str) -> usize {
    let symbols = tag
        .bytes()
        .filter(|b| b.is_ascii_punctuation() && !b"'\"_,:\\".contains(b))
        .count();
    let words = tag
        .split(|c: char| !c.is_ascii_alphanumeric() && c != '_')
        .filter(|w| matches!(*w, "not" | "and" | "or" | "is" | "in" | "if" | "else"))
        .count();
    symbols + words
}

/// String literals hold text, not operators.
fn without_strings(tag: &str) -> String {
    let mut out = String::with_capacity(tag.len());
    let mut quote = None;
    let mut chars = tag.chars();
    while let Some(c) = chars.next() {
        match (quote, c) {
            (Some(_), '\\') => {
                chars.next();
            }
            (Some(q), c) if q == c => quote = None,
            (Some(_), _) => {}
            (None, '\'' | '"') => quote = Some(c),
            (None, c) => out.push(c),
        }
    }
    out
}

/// Refuses what the compiler's recursion cannot take, evens out line ends, and turns `{% generation %}`, which marks an
/// assistant's text for training, into a plain scope.
pub fn prepare(source: &str) -> Result<String, Failure> {
    if source.len() > MAX_SOURCE_BYTES {
        return Err(Failure::corrupt(format!(
            "chat template has {} bytes, more than the limit of {MAX_SOURCE_BYTES}",
            source.len()
        )));
    }
    // Jinja2 reads every kind of line end as a line feed.
    let source = source.replace("\r\n", "\n").replace('\r', "\n");
    let mut out = String::with_capacity(source.len());
    let mut rest = source.as_str();
    let mut branches = 0;
    while !rest.is_empty() {
        let piece = next_piece(rest);
        rest = &rest[piece.len()..];
        if piece.starts_with("{{") || piece.starts_with("{%") {
            let code = without_strings(piece);
            branches += usize::from(code.contains("elif"));
            if branches > MAX_CHAIN || operators(&code) > MAX_CHAIN {
                return Err(Failure::corrupt(format!(
                    "chat template has more than {MAX_CHAIN} operators in one tag or elif branches"
                )));
            }
        }
        match bare_name(piece) {
            "generation" => out.push_str(&piece.replacen("generation", "with", 1)),
            "endgeneration" => out.push_str(&piece.replacen("endgeneration", "endwith", 1)),
            "raw" => {
                // In Jinja2 the line break behind this tag belongs to the raw text.
                match piece
                    .strip_suffix("%}")
                    .filter(|t| !t.ends_with(['-', '+']))
                {
                    Some(open) => out.extend([open, "+%}"]),
                    None => out.push_str(piece),
                }
                let close = rest.find("endraw").unwrap_or(rest.len());
                out.push_str(&rest[..close]);
                rest = &rest[close..];
            }
            _ => out.push_str(piece),
        }
    }
    Ok(out)
}

#[cfg(test)]
mod tests {
    use super::prepare;

    #[test]
    fn only_tags_change() {
        for (source, expected) in [
            (
                "{% generation %}a{% endgeneration %}",
                "{% with %}a{% endwith %}",
            ),
            (
                "{%- generation -%}a{%+ endgeneration%}",
                "{%- with -%}a{%+ endwith%}",
            ),
            ("generation {{ generation }}", "generation {{ generation }}"),
            ("{# {% generation %} #}", "{# {% generation %} #}"),
            ("{{ '{% generation %}' }}", "{{ '{% generation %}' }}"),
            (
                "{% raw %}{% generation %}{% endraw %}",
                "{% raw +%}{% generation %}{% endraw %}",
            ),
            ("{ { {% unclosed", "{ { {% unclosed"),
            ("a\r\nb\rc\n", "a\nb\nc\n"),
            (
                "{{ 'it\\'s %}' }}{% generation %}",
                "{{ 'it\\'s %}' }}{% with %}",
            ),
        ] {
            assert_eq!(prepare(source).unwrap(), expected);
        }
    }

    #[test]
    fn long_chains_are_refused() {
        assert!(prepare(&format!("{{{{ {}1 }}}}", "1+".repeat(10_001))).is_err());
        assert!(prepare(&format!("{{{{ {}1 }}}}", "not ".repeat(10_001))).is_err());
        assert!(prepare(&"{% elif 0 %}".repeat(10_001)).is_err());
        assert!(prepare(&format!("{{{{ '{}' }}}}", "+".repeat(20_000))).is_ok());
        assert!(prepare(&"x".repeat((1 << 20) + 1)).is_err());
    }
}
