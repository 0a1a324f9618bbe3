//! The C boundary: plain structs, ownership, status codes, panic containment.

use std::any::Any;
use std::panic::{catch_unwind, resume_unwind, AssertUnwindSafe};

use crate::boundary::{DecodeScheme, Failure, Slice, Status};
use crate::gguf::GgufVocabulary;
use crate::template::{ChatInput, ChatTemplates};
use crate::tokenizer::{EncodeFlags, TextTokenizer};

/// Bytes owned by Rust; give every one back with `tandem_buffer_free`.
#[repr(C)]
pub struct Buffer {
    pub data: *mut u8,
    pub size: usize,
    pub capacity: usize,
}

impl Buffer {
    fn store(out: *mut Buffer, bytes: Vec<u8>) {
        let mut bytes = std::mem::ManuallyDrop::new(bytes);
        let buffer = Buffer {
            data: bytes.as_mut_ptr(),
            size: bytes.len(),
            capacity: bytes.capacity(),
        };
        // SAFETY: every exported function requires its out-parameters to be writable.
        unsafe { out.write(buffer) };
    }
}

/// Token ids owned by Rust; give every one back with `tandem_ids_free`.
#[repr(C)]
pub struct Ids {
    pub data: *mut u32,
    pub size: usize,
    pub capacity: usize,
}

fn panic_text(payload: &(dyn Any + Send)) -> String {
    let text = payload
        .downcast_ref::<&str>()
        .map(|s| s.to_string())
        .or_else(|| payload.downcast_ref::<String>().cloned())
        .unwrap_or_else(|| "unknown panic".to_string());
    format!("text library panicked: {text}")
}

/// Runs `body`; a failure or a panic becomes a status and a message in `error`.
fn guard(error: *mut Buffer, body: impl FnOnce() -> Result<(), Failure>) -> i32 {
    let failure = match catch_unwind(AssertUnwindSafe(body)) {
        Ok(Ok(())) => return Status::Ok as i32,
        Ok(Err(failure)) => failure,
        Err(payload) => Failure::new(Status::Internal, panic_text(payload.as_ref())),
    };
    Buffer::store(error, failure.message.into_bytes());
    failure.status as i32
}

/// Panics are reported through the returned status; the default hook would also print them.
fn quiet_panics() {
    static ONCE: std::sync::Once = std::sync::Once::new();
    ONCE.call_once(|| std::panic::set_hook(Box::new(|_| {})));
}

/// Frees a buffer and makes it empty; a null or empty one is fine.
/// # Safety
/// `buffer` is null or points to a buffer filled by this library and not yet freed.
#[no_mangle]
pub unsafe extern "C" fn tandem_buffer_free(buffer: *mut Buffer) {
    if buffer.is_null() || (*buffer).data.is_null() {
        return;
    }
    drop(Vec::from_raw_parts(
        (*buffer).data,
        (*buffer).size,
        (*buffer).capacity,
    ));
    (*buffer).data = std::ptr::null_mut();
}

/// # Safety
/// `ids` is null or points to ids filled by this library and not yet freed.
#[no_mangle]
pub unsafe extern "C" fn tandem_ids_free(ids: *mut Ids) {
    if ids.is_null() || (*ids).data.is_null() {
        return;
    }
    drop(Vec::from_raw_parts(
        (*ids).data,
        (*ids).size,
        (*ids).capacity,
    ));
    (*ids).data = std::ptr::null_mut();
}

/// Builds a tokenizer from the text of tokenizer.json and of tokenizer_config.json (may be empty).
/// # Safety
/// Slices readable; `out` and `error` writable. `*out` is owned by the caller
/// (`tandem_tokenizer_free`) when the status is 0, `*error` (`tandem_buffer_free`) otherwise.
#[no_mangle]
pub unsafe extern "C" fn tandem_tokenizer_from_json(
    json: Slice,
    config: Slice,
    out: *mut *mut TextTokenizer,
    error: *mut Buffer,
) -> i32 {
    quiet_panics();
    guard(error, || {
        let tokenizer = TextTokenizer::from_json(json.bytes(), config.bytes())?;
        out.write(Box::into_raw(Box::new(tokenizer)));
        Ok(())
    })
}

/// Builds a tokenizer from a GGUF file's metadata.
/// # Safety
/// As for `tandem_tokenizer_from_json`; every slice inside `vocabulary` readable during the call.
#[no_mangle]
pub unsafe extern "C" fn tandem_tokenizer_from_gguf(
    vocabulary: *const GgufVocabulary,
    out: *mut *mut TextTokenizer,
    error: *mut Buffer,
) -> i32 {
    quiet_panics();
    guard(error, || {
        let tokenizer = crate::gguf::build(&*vocabulary)?;
        out.write(Box::into_raw(Box::new(tokenizer)));
        Ok(())
    })
}

/// # Safety
/// `tokenizer` is null or came from this library and is not used again.
#[no_mangle]
pub unsafe extern "C" fn tandem_tokenizer_free(tokenizer: *mut TextTokenizer) {
    if !tokenizer.is_null() {
        drop(Box::from_raw(tokenizer));
    }
}

/// Token ids of `text`. Thread-safe on one tokenizer.
/// # Safety
/// `tokenizer` valid, `text` readable, `out` and `error` writable; on status 0 the caller owns
/// `*out` (`tandem_ids_free`), otherwise `*error`.
#[no_mangle]
pub unsafe extern "C" fn tandem_tokenizer_encode(
    tokenizer: *const TextTokenizer,
    text: Slice,
    add_special_tokens: bool,
    parse_special: bool,
    out: *mut Ids,
    error: *mut Buffer,
) -> i32 {
    guard(error, || {
        let flags = EncodeFlags {
            add_special_tokens,
            parse_special,
        };
        let ids = (*tokenizer).encode(text.text("text")?, flags)?;
        let mut ids = std::mem::ManuallyDrop::new(ids);
        out.write(Ids {
            data: ids.as_mut_ptr(),
            size: ids.len(),
            capacity: ids.capacity(),
        });
        Ok(())
    })
}

/// The library's own decoding, as a reference for tests; production text goes through the C++
/// detokenizer.
/// # Safety
/// `ids` readable for `count` entries; otherwise as for `tandem_tokenizer_encode`, with `*out`
/// freed by `tandem_buffer_free`.
#[no_mangle]
pub unsafe extern "C" fn tandem_tokenizer_decode(
    tokenizer: *const TextTokenizer,
    ids: *const u32,
    count: usize,
    skip_special: bool,
    out: *mut Buffer,
    error: *mut Buffer,
) -> i32 {
    guard(error, || {
        let ids = if count == 0 {
            &[]
        } else {
            std::slice::from_raw_parts(ids, count)
        };
        let text = (*tokenizer).decode(ids, skip_special)?;
        Buffer::store(out, text.into_bytes());
        Ok(())
    })
}

/// Writes the vocabulary as records (`TextTokenizer::vocabulary`), how to decode it, the text whose
/// hash identifies the tokenizer, and warnings apart by line feeds.
/// # Safety
/// `tokenizer` valid, all out-parameters writable; on status 0 the caller owns the three buffers
/// (`tandem_buffer_free`), otherwise `*error` alone.
#[no_mangle]
pub unsafe extern "C" fn tandem_tokenizer_describe(
    tokenizer: *const TextTokenizer,
    scheme: *mut DecodeScheme,
    vocabulary: *mut Buffer,
    fingerprint: *mut Buffer,
    warnings: *mut Buffer,
    error: *mut Buffer,
) -> i32 {
    guard(error, || {
        let tokenizer = &*tokenizer;
        // Both go through the whole vocabulary, and a router is not ready before they are done.
        let (records, identity) = std::thread::scope(|scope| {
            let identity = scope.spawn(|| tokenizer.fingerprint_text());
            let records = tokenizer.vocabulary();
            (
                records,
                identity.join().unwrap_or_else(|p| resume_unwind(p)),
            )
        });
        let (records, identity) = (records?, identity?);
        scheme.write(tokenizer.scheme());
        Buffer::store(vocabulary, records);
        Buffer::store(fingerprint, identity.into_bytes());
        Buffer::store(warnings, tokenizer.warnings().join("\n").into_bytes());
        Ok(())
    })
}

/// Compiles the chat template of a model folder: `jinja` (chat_template.jinja, when `has_jinja`)
/// wins over `chat_template` of tokenizer_config.json. Status `NotFound` when there is none.
/// # Safety
/// As for `tandem_tokenizer_from_json`; free `*out` with `tandem_template_free`.
#[no_mangle]
pub unsafe extern "C" fn tandem_template_from_config(
    config: Slice,
    jinja: Slice,
    has_jinja: bool,
    out: *mut *mut ChatTemplates,
    error: *mut Buffer,
) -> i32 {
    quiet_panics();
    guard(error, || {
        let jinja = if has_jinja {
            Some(jinja.text("chat_template.jinja")?)
        } else {
            None
        };
        let templates = ChatTemplates::from_config(config.bytes(), jinja)?;
        out.write(Box::into_raw(Box::new(templates)));
        Ok(())
    })
}

/// # Safety
/// `templates` is null or came from this library and is not used again.
#[no_mangle]
pub unsafe extern "C" fn tandem_template_free(templates: *mut ChatTemplates) {
    if !templates.is_null() {
        drop(Box::from_raw(templates));
    }
}

/// What to render; JSON as text. An empty `tools` or `kwargs` means none.
#[repr(C)]
pub struct RenderRequest {
    pub messages: Slice,
    pub tools: Slice,
    pub kwargs: Slice,
    pub add_generation_prompt: bool,
    /// Seconds since the Unix epoch, for `strftime_now`.
    pub unix_seconds: f64,
}

/// Renders a conversation. Thread-safe on one template.
/// # Safety
/// `templates` and `request` valid, slices readable, `out` and `error` writable; on status 0 the
/// caller owns `*out`, otherwise `*error` (`tandem_buffer_free`).
#[no_mangle]
pub unsafe extern "C" fn tandem_template_render(
    templates: *const ChatTemplates,
    request: *const RenderRequest,
    out: *mut Buffer,
    error: *mut Buffer,
) -> i32 {
    guard(error, || {
        let request = &*request;
        let text = (*templates).render(&ChatInput {
            messages: request.messages.text("messages")?,
            tools: request.tools.text("tools")?,
            kwargs: request.kwargs.text("chat_template_kwargs")?,
            add_generation_prompt: request.add_generation_prompt,
            unix_seconds: request.unix_seconds,
        })?;
        Buffer::store(out, text.into_bytes());
        Ok(())
    })
}
