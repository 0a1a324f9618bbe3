//! tokenizer_config.json: special tokens by role, added tokens, BOS and EOS flags.

use serde_json::{Map, Value};
use tokenizers::AddedToken;

use crate::boundary::Failure;

/// Roles that name one token each. Templates see them under these names.
const ROLES: [&str; 7] = [
    "bos_token",
    "eos_token",
    "unk_token",
    "sep_token",
    "pad_token",
    "cls_token",
    "mask_token",
];

/// Lists of further special tokens, under the names of transformers 4 and 5.
const LISTS: [&str; 2] = ["additional_special_tokens", "extra_special_tokens"];

/// What this project reads of a tokenizer_config.json.
#[derive(Default)]
pub struct TokenizerConfig {
    pub root: Map<String, Value>,
}

impl TokenizerConfig {
    /// Empty input is an empty configuration.
    pub fn parse(bytes: &[u8]) -> Result<Self, Failure> {
        if bytes.iter().all(u8::is_ascii_whitespace) {
            return Ok(Self::default());
        }
        match serde_json::from_slice(bytes) {
            Ok(Value::Object(root)) => Ok(TokenizerConfig { root }),
            Ok(_) => Err(Failure::corrupt(
                "tokenizer_config.json must hold a JSON object",
            )),
            Err(e) => Err(Failure::corrupt(format!("tokenizer_config.json: {e}"))),
        }
    }

    /// Content of the token with this role (`bos_token`, ...), if it has one.
    pub fn role(&self, role: &str) -> Option<&str> {
        self.root.get(role).and_then(token_content)
    }

    /// Every named special token as (role, content), in a fixed order.
    pub fn roles(&self) -> impl Iterator<Item = (&'static str, &str)> {
        ROLES
            .into_iter()
            .filter_map(|role| self.role(role).map(|content| (role, content)))
    }

    /// Further special tokens without a role.
    pub fn extra_special(&self) -> Vec<AddedToken> {
        let mut tokens = Vec::new();
        for list in LISTS {
            match self.root.get(list) {
                Some(Value::Array(items)) => {
                    tokens.extend(items.iter().filter_map(|item| added_token(item, true)))
                }
                // transformers 5 also writes a map from a model's own role to a token.
                Some(Value::Object(items)) => {
                    tokens.extend(items.values().filter_map(|item| added_token(item, true)))
                }
                _ => {}
            }
        }
        tokens
    }

    /// Named special tokens, with the options the file gives them.
    pub fn role_tokens(&self) -> Vec<AddedToken> {
        ROLES
            .into_iter()
            .filter_map(|role| self.root.get(role).and_then(|v| added_token(v, true)))
            .collect()
    }

    /// `added_tokens_decoder`: tokens the file wants in the vocabulary, by ascending id.
    pub fn added_tokens(&self) -> Result<Vec<(u32, AddedToken)>, Failure> {
        let Some(Value::Object(items)) = self.root.get("added_tokens_decoder") else {
            return Ok(Vec::new());
        };
        let mut tokens = Vec::with_capacity(items.len());
        for (key, value) in items {
            let id: u32 = key.parse().map_err(|_| {
                Failure::corrupt(format!(
                    "tokenizer_config.json: added_tokens_decoder key \"{key}\" is not a token id"
                ))
            })?;
            let token = added_token(value, false).ok_or_else(|| {
                Failure::corrupt(format!(
                    "tokenizer_config.json: added_tokens_decoder[{key}] has no content"
                ))
            })?;
            tokens.push((id, token));
        }
        tokens.sort_by_key(|(id, _)| *id);
        Ok(tokens)
    }

    /// `add_bos_token` and `add_eos_token`; None when neither key is there, so that the
    /// post-processor of tokenizer.json stands.
    pub fn bos_eos_flags(&self) -> Option<(bool, bool)> {
        let bos = self.root.get("add_bos_token");
        let eos = self.root.get("add_eos_token");
        if bos.is_none() && eos.is_none() {
            return None;
        }
        let is_true = |v: Option<&Value>| v.and_then(Value::as_bool).unwrap_or(false);
        Some((is_true(bos), is_true(eos)))
    }
}

/// A token is written as its text or as an object with `content`.
fn token_content(value: &Value) -> Option<&str> {
    match value {
        Value::String(text) => Some(text),
        Value::Object(fields) => fields.get("content").and_then(Value::as_str),
        _ => None,
    }
}

fn added_token(value: &Value, special: bool) -> Option<AddedToken> {
    let content = token_content(value)?;
    let flag =
        |name: &str, default: bool| value.get(name).and_then(Value::as_bool).unwrap_or(default);
    let special = special || flag("special", false);
    Some(
        AddedToken::from(content, special)
            .single_word(flag("single_word", false))
            .lstrip(flag("lstrip", false))
            .rstrip(flag("rstrip", false))
            .normalized(flag("normalized", !special)),
    )
}
