//! One loaded tokenizer: the library's object plus what the C++ side needs to decode natively.

use std::sync::OnceLock;

use tokenizers::models::ModelWrapper;
use tokenizers::processors::template::TemplateProcessing;
use tokenizers::{AddedToken, Model, Tokenizer};

use crate::boundary::{DecodeScheme, Failure};
use crate::config::TokenizerConfig;
use crate::direct::DirectEncoder;
use crate::scheme::{alphabet_char, Steps, KIND_BYTES};

/// Above any real vocabulary; keeps a file with one huge id from asking for gigabytes.
const MAX_VOCABULARY: u32 = 1 << 22;

/// Flags of a vocabulary record.
pub const TOKEN_SPECIAL: u8 = 1;
pub const TOKEN_ADDED: u8 = 2;
pub const TOKEN_BYTE: u8 = 4;
pub const TOKEN_PRESENT: u8 = 8;

#[derive(Clone, Copy)]
pub struct EncodeFlags {
    pub add_special_tokens: bool,
    pub parse_special: bool,
}

/// Immutable after construction; every method may be called from any thread.
pub struct TextTokenizer {
    tokenizer: Tokenizer,
    /// The same tokenizer that reads special tokens as plain text; made on first use.
    plain: OnceLock<Tokenizer>,
    /// Encodes what it can without the library.
    direct: Option<DirectEncoder>,
    steps: Steps,
    /// GGUF only: token strings by id, since such files may repeat a string.
    gguf_tokens: Option<Vec<String>>,
    warnings: Vec<String>,
}

impl TextTokenizer {
    pub fn from_json(json: &[u8], config: &[u8]) -> Result<Self, Failure> {
        let config = TokenizerConfig::parse(config)?;
        let mut tokenizer = Tokenizer::from_bytes(json)
            .map_err(|e| Failure::corrupt(format!("tokenizer.json: {e}")))?;
        let mut warnings = Vec::new();
        // Prompts are never cut or padded behind the caller's back.
        tokenizer
            .with_truncation(None)
            .map_err(|e| Failure::corrupt(format!("tokenizer.json: truncation: {e}")))?
            .with_padding(None);
        disable_dropout(&mut tokenizer, &mut warnings);
        add_config_tokens(&mut tokenizer, &config, &mut warnings)?;
        if let Some((bos, eos)) = config.bos_eos_flags() {
            let bos = config.role("bos_token").filter(|_| bos);
            let eos = config.role("eos_token").filter(|_| eos);
            set_bos_eos(&mut tokenizer, bos, eos)?;
        }
        Self::assemble(tokenizer, None, warnings)
    }

    /// Takes the finished library object. `gguf_tokens` overrides token strings by id.
    pub fn assemble(
        tokenizer: Tokenizer,
        gguf_tokens: Option<Vec<String>>,
        mut warnings: Vec<String>,
    ) -> Result<Self, Failure> {
        let steps = Steps::of(tokenizer.get_decoder())?;
        if steps.scheme.kind == KIND_BYTES {
            let missing: Vec<String> = (0..=255u8)
                // Bytes that UTF-8 never uses need no token.
                .filter(|b| !matches!(b, 0xc0 | 0xc1 | 0xf5..=0xff))
                .filter(|b| {
                    let c = alphabet_char(*b).to_string();
                    tokenizer.get_model().token_to_id(&c).is_none()
                })
                .map(|b| format!("{b:02x}"))
                .collect();
            if !missing.is_empty() {
                warnings.push(format!(
                    "vocabulary lacks tokens for the bytes {}: characters with them lose those \
                     bytes when tokenized, as in the reference",
                    missing.join(" ")
                ));
            }
        }
        Ok(TextTokenizer {
            direct: DirectEncoder::of(&tokenizer),
            tokenizer,
            plain: OnceLock::new(),
            steps,
            gguf_tokens,
            warnings,
        })
    }

    pub fn scheme(&self) -> DecodeScheme {
        self.steps.scheme
    }

    pub fn warnings(&self) -> &[String] {
        &self.warnings
    }

    pub fn encode(&self, text: &str, flags: EncodeFlags) -> Result<Vec<u32>, Failure> {
        let tokenizer = if flags.parse_special {
            let direct = self.direct.as_ref();
            let ids =
                direct.and_then(|d| d.encode(&self.tokenizer, text, flags.add_special_tokens));
            if let Some(ids) = ids {
                return ids;
            }
            &self.tokenizer
        } else {
            self.plain.get_or_init(|| {
                let mut plain = self.tokenizer.clone();
                plain.set_encode_special_tokens(true);
                plain
            })
        };
        let encoding = tokenizer
            .encode_fast(text, flags.add_special_tokens)
            .map_err(|e| Failure::invalid(format!("text cannot be tokenized: {e}")))?;
        Ok(encoding.get_ids().to_vec())
    }

    pub fn decode(&self, ids: &[u32], skip_special: bool) -> Result<String, Failure> {
        self.tokenizer
            .decode(ids, skip_special)
            .map_err(|e| Failure::invalid(format!("ids cannot be decoded: {e}")))
    }

    /// Highest id plus one.
    fn size(&self) -> Result<u32, Failure> {
        let model = self.tokenizer.get_vocab(true).into_values().max();
        let listed = self.gguf_tokens.as_ref().map_or(0, |t| t.len() as u32);
        let size = model.map_or(0, |max| max.saturating_add(1)).max(listed);
        if size > MAX_VOCABULARY {
            return Err(Failure::corrupt(format!(
                "tokenizer.json: token id {} is above the limit of {MAX_VOCABULARY}",
                size - 1
            )));
        }
        Ok(size)
    }

    /// One record per id from 0: flags (u8), then three byte strings, each with its length as u32
    /// in native order: the token's own spelling, its bytes behind other tokens, and its bytes as
    /// first token. An id that no token has gives three empty strings.
    pub fn vocabulary(&self) -> Result<Vec<u8>, Failure> {
        let size = self.size()?;
        let added = self.tokenizer.get_added_vocabulary();
        let model = self.tokenizer.get_model();
        let mut out = Vec::with_capacity(size as usize * 40);
        for id in 0..size {
            let added_token = added.simple_id_to_token(id);
            let mut flags = TOKEN_PRESENT;
            let is_added = added_token.is_some();
            let listed = self.gguf_tokens.as_ref().and_then(|t| t.get(id as usize));
            let token = added_token
                .or_else(|| listed.cloned())
                .or_else(|| model.id_to_token(id));
            let Some(token) = token else {
                out.push(0);
                out.extend_from_slice(&[0; 12]);
                continue;
            };
            if is_added {
                flags |= TOKEN_ADDED;
            }
            if added.is_special_token(&token) {
                flags |= TOKEN_SPECIAL;
            }
            // A GGUF file spells control and user-defined tokens as plain text.
            if is_added && listed.is_some() && self.steps.scheme.kind == KIND_BYTES {
                push_record(&mut out, flags, &token, token.as_bytes(), token.as_bytes());
                continue;
            }
            let piece = self.steps.piece(&token)?;
            if piece.is_byte {
                flags |= TOKEN_BYTE;
            }
            push_record(&mut out, flags, &token, &piece.bytes, &piece.first);
        }
        Ok(out)
    }

    /// Equal for two tokenizers exactly when they give the same ids and texts: the serialized model
    /// (vocabulary, merges, options), added tokens and every processing step.
    pub fn fingerprint_text(&self) -> Result<String, Failure> {
        self.tokenizer
            .to_string(false)
            .map_err(|e| Failure::corrupt(format!("tokenizer cannot be serialized: {e}")))
    }
}

fn push_record(out: &mut Vec<u8>, flags: u8, token: &str, bytes: &[u8], first: &[u8]) {
    out.push(flags);
    for part in [token.as_bytes(), bytes, first] {
        out.extend_from_slice(&(part.len() as u32).to_ne_bytes());
        out.extend_from_slice(part);
    }
}

/// Merge dropout is for training; serving must give the same ids every time.
fn disable_dropout(tokenizer: &mut Tokenizer, warnings: &mut Vec<String>) {
    let ModelWrapper::BPE(bpe) = tokenizer.get_model() else {
        return;
    };
    if bpe.dropout.is_none() {
        return;
    }
    let mut bpe = bpe.clone();
    bpe.dropout = None;
    tokenizer.with_model(ModelWrapper::BPE(bpe));
    warnings.push("tokenizer.json: BPE dropout is ignored when serving".to_string());
}

/// Adds the tokens that tokenizer_config.json names and tokenizer.json lacks, as `transformers` does.
fn add_config_tokens(
    tokenizer: &mut Tokenizer,
    config: &TokenizerConfig,
    warnings: &mut Vec<String>,
) -> Result<(), Failure> {
    let failed = |e| Failure::corrupt(format!("tokenizer_config.json: added tokens: {e}"));
    let known = tokenizer.get_added_tokens_decoder();
    let listed = config.added_tokens()?;
    let changed: Vec<AddedToken> = listed
        .iter()
        .filter(|(_, token)| !known.values().any(|k| same_token(k, token)))
        .map(|(_, token)| token.clone())
        .collect();
    tokenizer.add_tokens(changed).map_err(failed)?;
    for (id, token) in &listed {
        let got = tokenizer.token_to_id(&token.content);
        if !token.content.is_empty() && got != Some(*id) {
            warnings.push(format!(
                "tokenizer_config.json: added_tokens_decoder wants id {id} for \"{}\", which \
                 tokenizer.json gives id {}",
                token.content,
                got.map_or("none".to_string(), |g| g.to_string())
            ));
        }
    }
    let known = tokenizer.get_added_tokens_decoder();
    let named: Vec<AddedToken> = config
        .role_tokens()
        .into_iter()
        .chain(config.extra_special())
        .filter(|token| !known.values().any(|k| k.content == token.content))
        .collect();
    tokenizer.add_tokens(named).map_err(failed)?;
    Ok(())
}

fn same_token(a: &AddedToken, b: &AddedToken) -> bool {
    a.content == b.content
        && a.single_word == b.single_word
        && a.lstrip == b.lstrip
        && a.rstrip == b.rstrip
        && a.normalized == b.normalized
        && a.special == b.special
}

/// Replaces the post-processor by one that puts `bos` before and `eos` behind the text.
pub fn set_bos_eos(
    tokenizer: &mut Tokenizer,
    bos: Option<&str>,
    eos: Option<&str>,
) -> Result<(), Failure> {
    let mut special = Vec::new();
    let mut single = Vec::new();
    let mut add = |token: &str, single: &mut Vec<String>| -> Result<(), Failure> {
        let id = tokenizer.token_to_id(token).ok_or_else(|| {
            Failure::corrupt(format!(
                "special token \"{token}\" is not in the vocabulary"
            ))
        })?;
        let entry = tokenizers::processors::template::SpecialToken::new(
            token.to_string(),
            vec![id],
            vec![token.to_string()],
        )
        .map_err(|e| Failure::corrupt(format!("special token \"{token}\": {e}")))?;
        special.push(entry);
        single.push(token.to_string());
        Ok(())
    };
    if let Some(bos) = bos {
        add(bos, &mut single)?;
    }
    single.push("$A".to_string());
    if let Some(eos) = eos {
        add(eos, &mut single)?;
    }
    let failed = |e: String| Failure::corrupt(format!("begin and end tokens: {e}"));
    let processor = TemplateProcessing::builder()
        .try_single(single)
        .map_err(|e| failed(e.to_string()))?
        .special_tokens(special)
        .build()
        .map_err(|e| failed(e.to_string()))?;
    tokenizer.with_post_processor(Some(processor));
    Ok(())
}
