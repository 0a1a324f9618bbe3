//! Tokenizers from a GGUF file's metadata.

use std::collections::HashMap;

use tokenizers::decoders::byte_fallback::ByteFallback;
use tokenizers::decoders::fuse::Fuse;
use tokenizers::decoders::sequence::Sequence as DecoderSequence;
use tokenizers::decoders::strip::Strip;
use tokenizers::decoders::DecoderWrapper;
use tokenizers::models::bpe::BPE;
use tokenizers::normalizers::{Prepend, Replace, Sequence as NormalizerSequence, NFC};
use tokenizers::pre_tokenizers::byte_level::ByteLevel;
use tokenizers::pre_tokenizers::digits::Digits;
use tokenizers::pre_tokenizers::sequence::Sequence as PreTokenizerSequence;
use tokenizers::pre_tokenizers::split::{Split, SplitPattern};
use tokenizers::pre_tokenizers::PreTokenizerWrapper;
use tokenizers::{AddedToken, SplitDelimiterBehavior, Tokenizer};

use crate::boundary::{Failure, Slice};
use crate::tokenizer::{set_bos_eos, TextTokenizer};

/// `tokenizer.ggml.token_type` values this module acts on.
const TYPE_NORMAL: i32 = 1;
const TYPE_UNKNOWN: i32 = 2;
const TYPE_CONTROL: i32 = 3;
const TYPE_USER_DEFINED: i32 = 4;
const TYPE_BYTE: i32 = 6;

/// Every split of a piece is tried, so long ones would take quadratic time; SentencePiece's own
/// default limit is 16 characters.
const MAX_MERGED_BYTES: usize = 1024;

/// An id that the file does not give.
const NO_ID: i64 = -1;

/// The metadata as the C++ side hands it over; every pointer is borrowed for the call.
#[repr(C)]
pub struct GgufVocabulary {
    pub model: Slice,
    pub pre: Slice,
    pub tokens: *const Slice,
    pub token_count: usize,
    pub merges: *const Slice,
    pub merge_count: usize,
    pub scores: *const f32,
    pub score_count: usize,
    pub token_types: *const i32,
    pub type_count: usize,
    pub bos: i64,
    pub eos: i64,
    pub unk: i64,
    pub pad: i64,
    /// -1 absent, 0 false, 1 true.
    pub add_bos: i32,
    pub add_eos: i32,
    pub add_space_prefix: i32,
}

unsafe fn items<'a, T>(data: *const T, count: usize) -> &'a [T] {
    if count == 0 || data.is_null() {
        &[]
    } else {
        std::slice::from_raw_parts(data, count)
    }
}

/// The same, with strings checked.
struct Vocabulary<'a> {
    tokens: Vec<&'a str>,
    merges: Vec<&'a str>,
    scores: &'a [f32],
    types: &'a [i32],
    bos: Option<usize>,
    eos: Option<usize>,
    unk: Option<usize>,
    pad: Option<usize>,
}

impl<'a> Vocabulary<'a> {
    /// # Safety
    /// Every slice in `raw` must be readable for `'a`.
    unsafe fn check(raw: &'a GgufVocabulary) -> Result<Self, Failure> {
        let strings = |what: &str, data: *const Slice, count: usize| {
            items(data, count)
                .iter()
                .enumerate()
                .map(|(i, s)| {
                    s.text("").map_err(|_| {
                        Failure::corrupt(format!("tokenizer.ggml.{what}[{i}] is not valid UTF-8"))
                    })
                })
                .collect::<Result<Vec<&'a str>, Failure>>()
        };
        let tokens = strings("tokens", raw.tokens, raw.token_count)?;
        if tokens.is_empty() {
            return Err(Failure::corrupt(
                "tokenizer.ggml.tokens is missing or empty",
            ));
        }
        let same_length = |what: &str, count: usize| {
            if count != 0 && count != tokens.len() {
                return Err(Failure::corrupt(format!(
                    "tokenizer.ggml.{what} has {count} entries for {} tokens",
                    tokens.len()
                )));
            }
            Ok(())
        };
        same_length("scores", raw.score_count)?;
        same_length("token_type", raw.type_count)?;
        let id = |what: &str, id: i64| match usize::try_from(id) {
            Ok(id) if id < tokens.len() => Ok(Some(id)),
            _ if id == NO_ID => Ok(None),
            _ => Err(Failure::corrupt(format!(
                "tokenizer.ggml.{what} is {id}, outside the vocabulary of {} tokens",
                tokens.len()
            ))),
        };
        Ok(Vocabulary {
            merges: strings("merges", raw.merges, raw.merge_count)?,
            scores: items(raw.scores, raw.score_count),
            types: items(raw.token_types, raw.type_count),
            bos: id("bos_token_id", raw.bos)?,
            eos: id("eos_token_id", raw.eos)?,
            unk: id("unknown_token_id", raw.unk)?,
            pad: id("padding_token_id", raw.pad)?,
            tokens,
        })
    }

    fn token_type(&self, id: usize) -> i32 {
        self.types.get(id).copied().unwrap_or(TYPE_NORMAL)
    }

    fn ids(&self) -> HashMap<&'a str, u32> {
        self.tokens
            .iter()
            .enumerate()
            .map(|(id, token)| (*token, id as u32))
            .collect()
    }

    fn duplicates(&self) -> usize {
        self.tokens.len() - self.ids().len()
    }

    /// Control tokens and the begin, end and unknown tokens are special; padding only when the file
    /// does not call that token a normal one (converters write id 0 for "none").
    fn is_special(&self, id: usize) -> bool {
        let kind = self.token_type(id);
        let named = [self.bos, self.eos, self.unk].contains(&Some(id))
            || (self.pad == Some(id) && kind != TYPE_NORMAL);
        named || kind == TYPE_CONTROL || kind == TYPE_UNKNOWN
    }

    fn added_tokens(&self) -> Vec<AddedToken> {
        (0..self.tokens.len())
            .filter(|id| !self.tokens[*id].is_empty())
            .filter_map(|id| {
                let special = self.is_special(id);
                (special || self.token_type(id) == TYPE_USER_DEFINED)
                    .then(|| AddedToken::from(self.tokens[id], special).normalized(false))
            })
            .collect()
    }

    fn merge_pairs(&self) -> Result<Vec<(String, String)>, Failure> {
        self.merges
            .iter()
            .enumerate()
            .map(|(i, merge)| {
                // A space inside the first part is part of it: tokens are never empty.
                let first = merge.chars().next().map_or(0, char::len_utf8);
                merge[first..]
                    .find(' ')
                    .map(|at| first + at)
                    .map(|at| (merge[..at].to_string(), merge[at + 1..].to_string()))
                    .ok_or_else(|| {
                        Failure::corrupt(format!(
                            "tokenizer.ggml.merges[{i}] is not two parts with a space between"
                        ))
                    })
            })
            .collect()
    }
}

pub fn build(raw: &GgufVocabulary) -> Result<TextTokenizer, Failure> {
    // SAFETY: the exported function requires every slice to be readable during the call.
    let (vocabulary, model, pre) = unsafe {
        (
            Vocabulary::check(raw)?,
            raw.model.text("tokenizer.ggml.model")?,
            raw.pre.text("tokenizer.ggml.pre")?,
        )
    };
    let mut warnings = Vec::new();
    if vocabulary.duplicates() > 0 {
        warnings.push(format!(
            "tokenizer.ggml.tokens repeats {} strings; the last id of each is used",
            vocabulary.duplicates()
        ));
    }
    let (mut tokenizer, bos_default) = match model {
        "gpt2" => byte_level(&vocabulary, pre, &mut warnings)?,
        "llama" => sentence_piece(&vocabulary, raw.add_space_prefix != 0)?,
        "" => {
            return Err(Failure::corrupt(
                "tokenizer.ggml.model is missing: the file holds no tokenizer",
            ))
        }
        other => {
            return Err(Failure::unsupported(format!(
                "tokenizer.ggml.model \"{other}\" is not supported (known: gpt2, llama)"
            )))
        }
    };
    tokenizer
        .add_tokens(vocabulary.added_tokens())
        .map_err(|e| Failure::corrupt(format!("tokenizer.ggml.tokens: {e}")))?;
    let flag = |value: i32, default: bool| match value {
        0 => false,
        1 => true,
        _ => default,
    };
    let wanted = |id: Option<usize>, on: bool| id.filter(|_| on).map(|id| vocabulary.tokens[id]);
    let bos = wanted(vocabulary.bos, flag(raw.add_bos, bos_default));
    let eos = wanted(vocabulary.eos, flag(raw.add_eos, false));
    if raw.add_bos == 1 && bos.is_none() {
        warnings.push("tokenizer.ggml.add_bos_token is true without a bos_token_id".to_string());
    }
    if raw.add_eos == 1 && eos.is_none() {
        warnings.push("tokenizer.ggml.add_eos_token is true without an eos_token_id".to_string());
    }
    set_bos_eos(&mut tokenizer, bos, eos)?;
    let tokens = vocabulary.tokens.iter().map(|t| t.to_string()).collect();
    TextTokenizer::assemble(tokenizer, Some(tokens), warnings)
}

/// Splits words as Llama 3 does; Qwen 2 differs in taking one digit at a time.
fn split_regex(digits: &str) -> String {
    [
        r"(?i:'s|'t|'re|'ve|'m|'ll|'d)",
        r"[^\r\n\p{L}\p{N}]?\p{L}+",
        digits,
        r" ?[^\s\p{L}\p{N}]+[\r\n]*",
        r"\s*[\r\n]+",
        r"\s+(?!\S)",
        r"\s+",
    ]
    .join("|")
}

fn split_then_bytes(digits: &str) -> Result<PreTokenizerWrapper, Failure> {
    let split = Split::new(
        SplitPattern::Regex(split_regex(digits)),
        SplitDelimiterBehavior::Isolated,
        false,
    )
    .map_err(|e| Failure::corrupt(format!("pre-tokenizer: {e}")))?;
    Ok(PreTokenizerSequence::new(vec![
        PreTokenizerWrapper::Split(split),
        PreTokenizerWrapper::ByteLevel(ByteLevel::new(false, true, false)),
    ])
    .into())
}

/// Byte-level BPE. Returns the tokenizer and whether BOS is put in front when the file does not say.
fn byte_level(
    vocabulary: &Vocabulary,
    pre: &str,
    warnings: &mut Vec<String>,
) -> Result<(Tokenizer, bool), Failure> {
    let gpt2 = || PreTokenizerWrapper::ByteLevel(ByteLevel::new(false, true, true));
    let llama3 = pre == "llama-bpe";
    let pre_tokenizer = match pre {
        "gpt-2" => gpt2(),
        "" | "default" => {
            let stated = if pre.is_empty() {
                "missing"
            } else {
                "\"default\""
            };
            warnings.push(format!(
                "tokenizer.ggml.pre is {stated}: splitting words as gpt-2 does, which may not be \
                 what the model was trained with"
            ));
            gpt2()
        }
        "smollm" => {
            PreTokenizerSequence::new(vec![PreTokenizerWrapper::Digits(Digits::new(true)), gpt2()])
                .into()
        }
        "llama-bpe" => split_then_bytes(r"\p{N}{1,3}")?,
        "qwen2" => split_then_bytes(r"\p{N}")?,
        other => {
            return Err(Failure::unsupported(format!(
                "tokenizer.ggml.pre \"{other}\" is not supported (known: gpt-2, llama-bpe, qwen2, \
                 smollm)"
            )))
        }
    };
    if vocabulary.merges.is_empty() {
        return Err(Failure::corrupt(
            "tokenizer.ggml.merges is missing, which model \"gpt2\" needs",
        ));
    }
    let ids = vocabulary
        .ids()
        .into_iter()
        .map(|(token, id)| (token.to_string(), id))
        .collect::<ahash::AHashMap<String, u32>>();
    let model = BPE::builder()
        .vocab_and_merges(ids, vocabulary.merge_pairs()?)
        // Llama 3's vocabulary holds words that its merges cannot reach.
        .ignore_merges(llama3)
        .build()
        .map_err(|e| Failure::corrupt(format!("tokenizer.ggml.merges: {e}")))?;
    let mut tokenizer = Tokenizer::new(model);
    if pre == "qwen2" {
        tokenizer
            .with_normalizer(Some(NFC))
            .map_err(|e| Failure::corrupt(format!("normalizer: {e}")))?;
    }
    tokenizer.with_pre_tokenizer(Some(pre_tokenizer));
    tokenizer.with_decoder(Some(DecoderWrapper::ByteLevel(ByteLevel::new(
        true, true, true,
    ))));
    Ok((tokenizer, llama3))
}

/// Merges that make SentencePiece's greedy choice: best score of the joined piece first. Splits of
/// one piece are ordered by the scores of their parts.
fn merges_from_scores(vocabulary: &Vocabulary, ids: &HashMap<&str, u32>) -> Vec<(String, String)> {
    let score = |id: u32| vocabulary.scores[id as usize];
    let mergeable = |id: usize| {
        !matches!(
            vocabulary.token_type(id),
            TYPE_UNKNOWN | TYPE_CONTROL | TYPE_USER_DEFINED | TYPE_BYTE
        )
    };
    let mut merges: Vec<(f32, &str, &str)> = Vec::new();
    for (id, token) in vocabulary.tokens.iter().enumerate() {
        let repeated = ids.get(token) != Some(&(id as u32));
        if !mergeable(id) || repeated || token.len() > MAX_MERGED_BYTES {
            continue;
        }
        let mut local: Vec<(f32, f32, &str, &str)> = token
            .char_indices()
            .skip(1)
            .filter_map(|(at, _)| {
                let (left, right) = token.split_at(at);
                let (l, r) = (*ids.get(left)?, *ids.get(right)?);
                (mergeable(l as usize) && mergeable(r as usize))
                    .then(|| (score(l), score(r), left, right))
            })
            .collect();
        local.sort_by(|a, b| b.0.total_cmp(&a.0).then(b.1.total_cmp(&a.1)));
        merges.extend(local.iter().map(|(_, _, l, r)| (score(id as u32), *l, *r)));
    }
    merges.sort_by(|a, b| b.0.total_cmp(&a.0));
    merges
        .into_iter()
        .map(|(_, l, r)| (l.to_string(), r.to_string()))
        .collect()
}

/// SentencePiece BPE with byte fallback, as `tokenizer.ggml.model` "llama" means it.
fn sentence_piece(
    vocabulary: &Vocabulary,
    add_space_prefix: bool,
) -> Result<(Tokenizer, bool), Failure> {
    let ids = vocabulary.ids();
    let merges = if !vocabulary.merges.is_empty() {
        vocabulary.merge_pairs()?
    } else if !vocabulary.scores.is_empty() {
        merges_from_scores(vocabulary, &ids)
    } else {
        return Err(Failure::corrupt(
            "tokenizer.ggml.scores is missing, which model \"llama\" needs",
        ));
    };
    let owned = ids
        .iter()
        .map(|(token, id)| (token.to_string(), *id))
        .collect::<ahash::AHashMap<String, u32>>();
    let mut builder = BPE::builder()
        .vocab_and_merges(owned, merges)
        .fuse_unk(true)
        .byte_fallback(true);
    let unk = vocabulary.unk.or_else(|| {
        (0..vocabulary.tokens.len()).find(|id| vocabulary.token_type(*id) == TYPE_UNKNOWN)
    });
    if let Some(unk) = unk {
        builder = builder.unk_token(vocabulary.tokens[unk].to_string());
    }
    let model = builder
        .build()
        .map_err(|e| Failure::corrupt(format!("tokenizer.ggml.tokens: {e}")))?;
    let mut tokenizer = Tokenizer::new(model);
    let failed = |e| Failure::corrupt(format!("normalizer: {e}"));
    let spaces = Replace::new(" ", "\u{2581}").map_err(failed)?;
    let mut steps = Vec::new();
    if add_space_prefix {
        steps.push(Prepend::new("\u{2581}".to_string()).into());
    }
    steps.push(spaces.into());
    tokenizer
        .with_normalizer(Some(NormalizerSequence::new(steps)))
        .map_err(failed)?;
    let mut decoders = vec![
        DecoderWrapper::Replace(Replace::new("\u{2581}", " ").map_err(failed)?),
        DecoderWrapper::ByteFallback(ByteFallback::new()),
        DecoderWrapper::Fuse(Fuse::new()),
    ];
    if add_space_prefix {
        decoders.push(DecoderWrapper::Strip(Strip::new(' ', 1, 0)));
    }
    tokenizer.with_decoder(Some(DecoderSequence::new(decoders)));
    Ok((tokenizer, true))
}
