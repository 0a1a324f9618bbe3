//! Byte-level BPE for ids alone. The library follows every character through normalising, splitting
//! and mapping, to be able to tell offsets that nobody here asks for; that is most of its time. The
//! same expressions and the same model over plain slices give the same ids. Only pipelines known to
//! be of that kind are taken (`DirectEncoder::of`); the library does the rest.

use std::cell::RefCell;
use std::sync::atomic::{AtomicU64, Ordering};

use ahash::AHashMap;
use tokenizers::models::ModelWrapper;
use tokenizers::normalizers::NormalizerWrapper;
use tokenizers::pre_tokenizers::split::SplitPattern;
use tokenizers::pre_tokenizers::PreTokenizerWrapper;
use tokenizers::utils::SysRegex;
use tokenizers::{Model, SplitDelimiterBehavior, Tokenizer};

use crate::boundary::Failure;
use crate::scheme::alphabet_char;

/// How GPT-2 splits words, which is what `ByteLevel` means by `use_regex`.
const GPT2: &str = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+";
/// Pieces that a thread remembers; some hundred bytes each.
const MAX_PIECES: usize = 16_384;
/// In bytes. Longer pieces hardly come again.
const MAX_PIECE: usize = 64;

type Pieces = AHashMap<Box<str>, Box<[u32]>>;

thread_local! {
    /// By encoder; a process has as many as it serves models.
    static PIECES: RefCell<AHashMap<u64, Pieces>> = RefCell::new(AHashMap::new());
}

enum Stage {
    Regex(SysRegex),
    Digits,
}

pub struct DirectEncoder {
    id: u64,
    nfc: bool,
    added: AddedTokens,
    stages: Vec<Stage>,
    alphabet: Vec<char>,
    /// What the post-processor puts around the ids.
    before: Vec<u32>,
    after: Vec<u32>,
}

impl DirectEncoder {
    /// None: some step of the pipeline is not known here.
    pub fn of(tokenizer: &Tokenizer) -> Option<DirectEncoder> {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        let nfc = match tokenizer.get_normalizer() {
            None => false,
            Some(NormalizerWrapper::NFC(_)) => true,
            Some(_) => return None,
        };
        let ModelWrapper::BPE(bpe) = tokenizer.get_model() else {
            return None;
        };
        let plain = bpe.dropout.is_none()
            && tokenizer.get_truncation().is_none()
            && tokenizer.get_padding().is_none();
        if !plain {
            return None;
        }
        let (before, after) = surroundings(tokenizer)?;
        Some(DirectEncoder {
            id: NEXT.fetch_add(1, Ordering::Relaxed),
            nfc,
            added: AddedTokens::of(tokenizer)?,
            stages: stages(tokenizer.get_pre_tokenizer()?)?,
            alphabet: (0..=255).map(alphabet_char).collect(),
            before,
            after,
        })
    }

    /// None: a text that only the library can do. `tokenizer` is the one this was made of.
    pub fn encode(
        &self,
        tokenizer: &Tokenizer,
        text: &str,
        add_special_tokens: bool,
    ) -> Option<Result<Vec<u32>, Failure>> {
        if self.nfc && !text.chars().all(settled) {
            return None;
        }
        Some(PIECES.with_borrow_mut(|all| {
            let mut run = Run {
                encoder: self,
                model: tokenizer.get_model(),
                pieces: all.entry(self.id).or_default(),
                mapped: String::new(),
                ids: Vec::with_capacity(text.len() / 3 + 8),
            };
            if add_special_tokens {
                run.ids.extend_from_slice(&self.before);
            }
            run.text(text)?;
            if add_special_tokens {
                run.ids.extend_from_slice(&self.after);
            }
            Ok(run.ids)
        }))
    }
}

/// One text on its way to ids.
struct Run<'a> {
    encoder: &'a DirectEncoder,
    model: &'a ModelWrapper,
    pieces: &'a mut Pieces,
    mapped: String,
    ids: Vec<u32>,
}

impl Run<'_> {
    fn text(&mut self, text: &str) -> Result<(), Failure> {
        let encoder = self.encoder;
        let mut start = 0;
        while let Some((at, end, id)) = encoder.added.find(text, start) {
            self.split(&text[start..at], &encoder.stages)?;
            self.ids.push(id);
            start = end;
        }
        self.split(&text[start..], &encoder.stages)
    }

    /// What an expression matches is a piece, and so is what lies between two matches.
    fn split(&mut self, text: &str, stages: &[Stage]) -> Result<(), Failure> {
        if text.is_empty() {
            return Ok(());
        }
        let Some((stage, rest)) = stages.split_first() else {
            return self.piece(text);
        };
        let mut start = 0;
        match stage {
            Stage::Regex(regex) => {
                for (at, end) in regex.find_iter(text) {
                    self.split(&text[start..at], rest)?;
                    self.split(&text[at..end], rest)?;
                    start = end;
                }
            }
            Stage::Digits => {
                for (at, digit) in text.match_indices(char::is_numeric) {
                    self.split(&text[start..at], rest)?;
                    self.split(digit, rest)?;
                    start = at + digit.len();
                }
            }
        }
        self.split(&text[start..], rest)
    }

    fn piece(&mut self, piece: &str) -> Result<(), Failure> {
        if let Some(known) = self.pieces.get(piece) {
            self.ids.extend_from_slice(known);
            return Ok(());
        }
        self.mapped.clear();
        let alphabet = &self.encoder.alphabet;
        let chars = piece.bytes().map(|byte| alphabet[usize::from(byte)]);
        self.mapped.extend(chars);
        let tokens = self
            .model
            .tokenize(&self.mapped)
            .map_err(|e| Failure::invalid(format!("text cannot be tokenized: {e}")))?;
        let ids: Box<[u32]> = tokens.iter().map(|token| token.id).collect();
        self.ids.extend_from_slice(&ids);
        if piece.len() <= MAX_PIECE && self.pieces.len() < MAX_PIECES {
            self.pieces.insert(piece.into(), ids);
        }
        Ok(())
    }
}

/// Whether NFC leaves the character alone whatever stands beside it: neither it nor the character
/// after it is changed, reordered or joined. Ranges without combining marks and without characters
/// that decompose; what is outside of them only costs time.
fn settled(c: char) -> bool {
    matches!(c,
        '\0'..='\u{2ff}'
        | '\u{400}'..='\u{482}' // Cyrillic
        | '\u{2010}'..='\u{2027}' // punctuation
        | '\u{2030}'..='\u{205e}'
        | '\u{3001}'..='\u{3029}'
        | '\u{3041}'..='\u{3096}' // kana
        | '\u{30a1}'..='\u{30fa}'
        | '\u{4e00}'..='\u{9fff}' // Han
        | '\u{ac00}'..='\u{d7a3}' // Hangul syllables
        | '\u{ff01}'..='\u{ff5e}' // full-width forms
        | '\u{1f300}'..='\u{1faff}' // pictures
    )
}

/// Tokens found in the text before anything else happens to it: leftmost first, longest of those.
struct AddedTokens {
    /// By first byte, longer ones first.
    by_first: Vec<Vec<(String, u32)>>,
    starts: [bool; 256],
}

impl AddedTokens {
    fn of(tokenizer: &Tokenizer) -> Option<AddedTokens> {
        let mut tokens = AddedTokens {
            by_first: vec![Vec::new(); 256],
            starts: [false; 256],
        };
        for (id, token) in tokenizer.get_added_tokens_decoder() {
            if token.normalized || token.single_word || token.lstrip || token.rstrip {
                return None;
            }
            let Some(first) = token.content.bytes().next() else {
                continue;
            };
            tokens.starts[usize::from(first)] = true;
            tokens.by_first[usize::from(first)].push((token.content, id));
        }
        for list in &mut tokens.by_first {
            list.sort_by_key(|(content, _)| std::cmp::Reverse(content.len()));
            if list.windows(2).any(|pair| pair[0].0 == pair[1].0) {
                return None; // two ids for one text
            }
        }
        Some(tokens)
    }

    /// Start, end and id of the first one at or behind `from`.
    fn find(&self, text: &str, from: usize) -> Option<(usize, usize, u32)> {
        let bytes = text.as_bytes();
        let mut at = from;
        loop {
            at += bytes[at..]
                .iter()
                .position(|byte| self.starts[usize::from(*byte)])?;
            let here = &bytes[at..];
            let found = self.by_first[usize::from(bytes[at])]
                .iter()
                .find(|(content, _)| here.starts_with(content.as_bytes()));
            if let Some((content, id)) = found {
                return Some((at, at + content.len(), *id));
            }
            at += 1;
        }
    }
}

/// The steps before the model, of which the last is the mapping of bytes.
fn stages(pre_tokenizer: &PreTokenizerWrapper) -> Option<Vec<Stage>> {
    let list = match pre_tokenizer {
        PreTokenizerWrapper::Sequence(sequence) => sequence.as_ref(),
        single => std::slice::from_ref(single),
    };
    let (last, splits) = list.split_last()?;
    let mut stages = Vec::new();
    for step in splits {
        stages.push(match step {
            PreTokenizerWrapper::Split(split)
                if split.behavior == SplitDelimiterBehavior::Isolated && !split.invert =>
            {
                match &split.pattern {
                    SplitPattern::Regex(regex) => Stage::Regex(SysRegex::new(regex).ok()?),
                    SplitPattern::String(_) => return None,
                }
            }
            PreTokenizerWrapper::Digits(digits) if digits.individual_digits => Stage::Digits,
            _ => return None,
        });
    }
    match last {
        PreTokenizerWrapper::ByteLevel(bytes) if !bytes.add_prefix_space => {
            if bytes.use_regex {
                stages.push(Stage::Regex(SysRegex::new(GPT2).ok()?));
            }
            Some(stages)
        }
        _ => None,
    }
}

/// What the post-processor puts before and behind a text, seen from texts of one and of several
/// tokens.
fn surroundings(tokenizer: &Tokenizer) -> Option<(Vec<u32>, Vec<u32>)> {
    let ids = |text: &str, special: bool| {
        let encoding = tokenizer.encode_fast(text, special).ok()?;
        Some(encoding.get_ids().to_vec())
    };
    let mut known: Option<(Vec<u32>, Vec<u32>)> = None;
    for text in ["a", "b 1", "tandem, probing"] {
        let bare = ids(text, false)?;
        let whole = ids(text, true)?;
        if bare.is_empty() {
            return None;
        }
        let mut places = whole.windows(bare.len()).enumerate();
        let at = places.find(|(_, window)| *window == bare)?.0;
        let found = (whole[..at].to_vec(), whole[at + bare.len()..].to_vec());
        if known.as_ref().is_some_and(|known| *known != found) {
            return None;
        }
        known = Some(found);
    }
    known
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tokenizer::set_bos_eos;
    use std::path::PathBuf;
    use tokenizers::normalizers::NFC;
    use tokenizers::pre_tokenizers::byte_level::ByteLevel;
    use tokenizers::pre_tokenizers::digits::Digits;
    use tokenizers::pre_tokenizers::sequence::Sequence as PreTokenizerSequence;
    use tokenizers::{NormalizedString, Normalizer};

    fn all() -> impl Iterator<Item = char> {
        ('\0'..=char::MAX).filter(|c| settled(*c))
    }

    fn nfc(text: &str) -> String {
        let mut normalized = NormalizedString::from(text);
        NFC.normalize(&mut normalized).unwrap();
        normalized.get().to_string()
    }

    #[test]
    fn settled_characters_are_their_own_normal_form() {
        // Bases that join with many marks, before and behind each character.
        for c in all() {
            let text = format!("{c}a{c}e{c}O{c}\u{ac00}{c}\u{304b}{c}\u{418}{c}");
            assert_eq!(nfc(&text), text, "U+{:04X}", c as u32);
        }
    }

    /// Small and reproducible.
    struct Random(u64);
    impl Random {
        fn below(&mut self, n: usize) -> usize {
            self.0 = self
                .0
                .wrapping_mul(6364136223846793005)
                .wrapping_add(1442695040888963407);
            ((self.0 >> 33) as usize) % n
        }
    }

    fn texts(tokenizer: &Tokenizer) -> Vec<String> {
        #[rustfmt::skip]
        let mut parts: Vec<String> = [
            "The", " quick", "brown ", "don't", "WE'LL", "  ", "\n", "\r\n", "\t", " \n ", "123",
            " 4", "7", "½", "²", "é", "ß", "漢字", "か", "が", "가", "🙂", "…", "—", "\u{a0}", "<", "<|",
            "|>", "<|im_start", "!!", "?!\n", "x=1;", "}{", "\u{0}", "\u{7f}", "''", "'s", "Привет",
        ]
        .map(String::from)
        .to_vec();
        parts.extend(
            tokenizer
                .get_added_tokens_decoder()
                .into_values()
                .take(12)
                .map(|t| t.content),
        );
        #[rustfmt::skip]
        let unsettled = [
            "٣", "e\u{301}", "ﬁ", "\u{1100}\u{1161}", "Ω", "\u{2126}", "👩‍👩‍👧", "\u{fe0f}", "\u{3000}",
            "ا", "हिन्दी", "\u{3099}",
        ];
        let mut random = Random(7);
        let mut texts = vec![String::new(), " ".to_string(), "a".repeat(300)];
        for _ in 0..3000 {
            let length = 1 + random.below(12);
            let mut part = || match random.below(30) {
                0 => unsettled[random.below(unsettled.len())],
                _ => parts[random.below(parts.len())].as_str(),
            };
            texts.push((0..length).map(|_| part()).collect());
        }
        texts
    }

    #[test]
    fn ids_are_the_librarys() {
        let root = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../..");
        let mut files = vec![root.join("models/chat-6m/tokenizer.json")];
        for entry in std::fs::read_dir(root.join("tests/data/text/tokenizers")).unwrap() {
            files.push(entry.unwrap().path());
        }
        let mut direct = Vec::new();
        for file in files {
            let Ok(mut tokenizer) = Tokenizer::from_file(&file) else {
                continue;
            };
            tokenizer.with_truncation(None).unwrap().with_padding(None);
            let name = file.display().to_string();
            if compare(&tokenizer, &name) {
                direct.push(name.clone());
            }
            // As SmolLM2 splits, and with a token in front.
            tokenizer.with_pre_tokenizer(Some(PreTokenizerSequence::new(vec![
                Digits::new(true).into(),
                ByteLevel::new(false, true, true).into(),
            ])));
            let first = tokenizer.get_added_tokens_decoder().into_values().next();
            if let Some(token) = first {
                set_bos_eos(&mut tokenizer, Some(&token.content), None).unwrap();
                compare(&tokenizer, &format!("{name} with digits and BOS"));
            }
        }
        for name in [
            "chat-6m",
            "nfc.json",
            "obey_merges.json",
            "ignore_merges.json",
        ] {
            assert!(
                direct.iter().any(|d| d.contains(name)),
                "{name} is not encoded directly"
            );
        }
    }

    /// False: the tokenizer is not of this kind.
    fn compare(tokenizer: &Tokenizer, name: &str) -> bool {
        let Some(encoder) = DirectEncoder::of(tokenizer) else {
            return false;
        };
        let mut by_library = 0;
        let texts = texts(tokenizer);
        for text in &texts {
            for special in [false, true] {
                let expected = tokenizer.encode_fast(text.as_str(), special).unwrap();
                match encoder.encode(tokenizer, text, special) {
                    Some(got) => assert_eq!(got.unwrap(), expected.get_ids(), "{name} {text:?}"),
                    None => by_library += 1,
                }
            }
        }
        assert!(
            by_library < texts.len(),
            "{name}: {by_library} texts need the library"
        );
        true
    }
}
