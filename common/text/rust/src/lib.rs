//! Tokenizer and chat templates for `common/text`, behind a small C ABI (`abi.rs`).
//!
//! Nothing here is called from outside `common/text`. Every exported function catches panics, takes
//! explicit lengths and says who owns what it returns; see `common/text/rust_abi.h` for the C side.

pub mod abi;
pub mod boundary;
pub mod config;
pub mod direct;
pub mod gguf;
pub mod messages;
pub mod methods;
pub mod python;
pub mod scheme;
pub mod source;
pub mod stack;
pub mod template;
pub mod tokenizer;
