//! Turns a tokenizer's decoder into per-token bytes plus one small rule for joining them, so that
//! the C++ side can decode and stream without calling back here. Each token is run through the
//! library's own decoder steps once, at load.

use tokenizers::decoders::byte_fallback::ByteFallback;
use tokenizers::decoders::DecoderWrapper;
use tokenizers::Decoder;

use crate::boundary::{DecodeScheme, Failure};

pub const KIND_BYTES: u32 = 0;
pub const KIND_PIECES: u32 = 1;

/// What one token contributes to the text.
#[derive(Debug, PartialEq, Eq)]
pub struct Piece {
    /// Contribution anywhere but at the start.
    pub bytes: Vec<u8>,
    /// Contribution as the first token of the text.
    pub first: Vec<u8>,
    /// The single byte of a byte-fallback token.
    pub is_byte: bool,
}

/// Splits a decoder into the steps that act on one token at a time and the rule after them.
pub struct Steps {
    pub scheme: DecodeScheme,
    per_token: Vec<DecoderWrapper>,
    byte_level: bool,
    byte_fallback: bool,
    joined_by_space: bool,
}

fn name(decoder: &DecoderWrapper) -> &'static str {
    match decoder {
        DecoderWrapper::BPE(_) => "BPEDecoder",
        DecoderWrapper::ByteLevel(_) => "ByteLevel",
        DecoderWrapper::WordPiece(_) => "WordPiece",
        DecoderWrapper::Metaspace(_) => "Metaspace",
        DecoderWrapper::CTC(_) => "CTC",
        DecoderWrapper::Sequence(_) => "Sequence",
        DecoderWrapper::Replace(_) => "Replace",
        DecoderWrapper::Fuse(_) => "Fuse",
        DecoderWrapper::Strip(_) => "Strip",
        DecoderWrapper::ByteFallback(_) => "ByteFallback",
    }
}

fn flatten<'a>(decoder: &'a DecoderWrapper, out: &mut Vec<&'a DecoderWrapper>) {
    match decoder {
        DecoderWrapper::Sequence(sequence) => {
            for inner in sequence.get_decoders() {
                flatten(inner, out);
            }
        }
        other => out.push(other),
    }
}

impl Steps {
    /// Refuses by name what cannot be streamed exactly.
    pub fn of(decoder: Option<&DecoderWrapper>) -> Result<Steps, Failure> {
        let mut steps = Steps {
            scheme: DecodeScheme {
                kind: KIND_PIECES,
                ..DecodeScheme::default()
            },
            per_token: Vec::new(),
            byte_level: false,
            byte_fallback: false,
            joined_by_space: decoder.is_none(),
        };
        let mut flat = Vec::new();
        if let Some(decoder) = decoder {
            flatten(decoder, &mut flat);
        }
        let mut fused = false;
        for step in flat {
            steps.take(step, &mut fused)?;
        }
        Ok(steps)
    }

    fn take(&mut self, step: &DecoderWrapper, fused: &mut bool) -> Result<(), Failure> {
        let refuse = |why: &str| {
            Err(Failure::unsupported(format!(
                "tokenizer.json: decoder {} {why}",
                name(step)
            )))
        };
        match step {
            DecoderWrapper::Fuse(_) => *fused = true,
            DecoderWrapper::Strip(strip) if *fused => {
                if self.scheme.strip_left > 0 || strip.stop > 0 || self.byte_level {
                    return refuse("in this position is not supported");
                }
                self.scheme.strip_left = u32::try_from(strip.start)
                    .map_err(|_| Failure::corrupt("tokenizer.json: decoder Strip.start is huge"))?;
                self.scheme.strip_char = strip.content as u32;
            }
            _ if *fused || self.byte_fallback || self.byte_level => {
                return refuse("in this position is not supported");
            }
            DecoderWrapper::ByteFallback(_) => self.byte_fallback = true,
            DecoderWrapper::ByteLevel(_) => {
                if !self.per_token.is_empty() {
                    return refuse("after other steps is not supported");
                }
                self.byte_level = true;
                self.scheme.kind = KIND_BYTES;
            }
            DecoderWrapper::Metaspace(_)
            | DecoderWrapper::Replace(_)
            | DecoderWrapper::Strip(_)
            | DecoderWrapper::WordPiece(_) => self.per_token.push(step.clone()),
            DecoderWrapper::BPE(_) | DecoderWrapper::CTC(_) | DecoderWrapper::Sequence(_) => {
                return refuse("is not supported");
            }
        }
        Ok(())
    }

    /// Runs the per-token steps on `token` behind `before` others.
    fn text(&self, token: &str, before: usize) -> Result<String, Failure> {
        let mut tokens = vec![String::from("x"); before];
        tokens.push(token.to_string());
        for step in &self.per_token {
            tokens = step
                .decode_chain(tokens)
                .map_err(|e| Failure::corrupt(format!("tokenizer.json: decoder: {e}")))?;
        }
        tokens
            .pop()
            .ok_or_else(|| Failure::unsupported("tokenizer.json: decoder drops tokens"))
    }

    pub fn piece(&self, token: &str) -> Result<Piece, Failure> {
        if self.byte_level {
            let bytes = byte_level_bytes(token);
            return Ok(Piece {
                first: bytes.clone(),
                bytes,
                is_byte: false,
            });
        }
        let first = self.text(token, 0)?;
        let mut later = self.text(token, 1)?;
        if self.joined_by_space {
            later.insert(0, ' ');
        }
        if self.byte_fallback {
            if let Some(byte) = fallback_byte(&later) {
                return Ok(Piece {
                    bytes: vec![byte],
                    first: vec![byte],
                    is_byte: true,
                });
            }
        }
        Ok(Piece {
            bytes: later.into_bytes(),
            first: first.into_bytes(),
            is_byte: false,
        })
    }
}

/// The byte of a token such as `<0x0A>`; the spelling is the one the ByteFallback decoder accepts.
pub fn fallback_byte(token: &str) -> Option<u8> {
    if token.len() == 6 && token.starts_with("<0x") && token.ends_with('>') {
        u8::from_str_radix(token.get(3..5)?, 16).ok()
    } else {
        None
    }
}

/// True if the library reads `token` as a byte; for tests of `fallback_byte`.
pub fn library_reads_as_byte(token: &str) -> bool {
    let decoded = ByteFallback::new().decode_chain(vec![token.to_string()]);
    matches!(decoded.as_deref(), Ok([text]) if text != token)
}

/// The byte a character of the byte-level alphabet stands for: printable Latin-1 stands for itself,
/// the other bytes for U+0100 and up, in order.
fn alphabet_byte(c: char) -> Option<u8> {
    let printable = |b: u8| matches!(b, 0x21..=0x7e | 0xa1..=0xac | 0xae..=0xff);
    let code = c as u32;
    if code < 256 {
        return Some(code as u8).filter(|b| printable(*b));
    }
    let rank = (code - 256) as usize;
    (0..=255u8).filter(|b| !printable(*b)).nth(rank)
}

/// The character that stands for a byte.
pub fn alphabet_char(byte: u8) -> char {
    use std::sync::OnceLock;
    static TABLE: OnceLock<Vec<char>> = OnceLock::new();
    TABLE.get_or_init(|| {
        let mut table = vec!['\0'; 256];
        for code in (0x21..0x200).filter_map(char::from_u32) {
            if let Some(b) = alphabet_byte(code) {
                table[usize::from(b)] = code;
            }
        }
        table
    })[usize::from(byte)]
}

/// Bytes of a token spelled in the byte-level alphabet; a token with any other character is taken
/// as plain text, as the library does.
pub fn byte_level_bytes(token: &str) -> Vec<u8> {
    use std::sync::OnceLock;
    static TABLE: OnceLock<Vec<Option<u8>>> = OnceLock::new();
    let table = TABLE.get_or_init(|| {
        (0u32..0x200)
            .map(|c| char::from_u32(c).and_then(alphabet_byte))
            .collect()
    });
    token
        .chars()
        .map(|c| table.get(c as usize).copied().flatten())
        .collect::<Option<Vec<u8>>>()
        .unwrap_or_else(|| token.as_bytes().to_vec())
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokenizers::pre_tokenizers::byte_level::ByteLevel;

    #[test]
    fn alphabet_equals_the_librarys() {
        let ours: std::collections::HashSet<char> = (0..=255u8).map(alphabet_char).collect();
        let theirs: std::collections::HashSet<char> = ByteLevel::alphabet().into_iter().collect();
        assert_eq!(ours, theirs);
        for byte in 0..=255u8 {
            assert_eq!(byte_level_bytes(&alphabet_char(byte).to_string()), [byte]);
        }
    }

    #[test]
    fn byte_tokens_are_those_the_library_reads() {
        for token in [
            "<0x41>", "<0xFF>", "<0xff>", "<0xG0>", "<0x4>", "<0x041>", "<0xé>", "a",
        ] {
            assert_eq!(
                fallback_byte(token).is_some(),
                library_reads_as_byte(token),
                "{token}"
            );
        }
    }

    #[test]
    fn unsupported_decoders_are_named() {
        let ctc: DecoderWrapper = serde_json::from_str(
            r#"{"type":"CTC","pad_token":"<pad>","word_delimiter_token":"|","cleanup":true}"#,
        )
        .unwrap();
        let failure = Steps::of(Some(&ctc)).err().unwrap();
        assert!(failure.message.contains("CTC"), "{}", failure.message);
    }
}
