//! What crosses the C boundary by value, and how a call fails; the exported functions are in `abi.rs`.

/// Why a call failed; the C++ side maps each to an `ErrorCode`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(i32)]
pub enum Status {
    Ok = 0,
    InvalidArgument = 1,
    Unsupported = 2,
    CorruptData = 3,
    NotFound = 4,
    Internal = 5,
}

/// A failure on its way to the C++ side.
#[derive(Debug)]
pub struct Failure {
    pub status: Status,
    pub message: String,
}

impl Failure {
    pub fn new(status: Status, message: impl Into<String>) -> Self {
        Failure {
            status,
            message: message.into(),
        }
    }
    pub fn invalid(message: impl Into<String>) -> Self {
        Self::new(Status::InvalidArgument, message)
    }
    pub fn unsupported(message: impl Into<String>) -> Self {
        Self::new(Status::Unsupported, message)
    }
    pub fn corrupt(message: impl Into<String>) -> Self {
        Self::new(Status::CorruptData, message)
    }
}

/// Borrowed bytes; the caller keeps them alive for the length of the call. `data` may be null when
/// `size` is 0.
#[derive(Clone, Copy)]
#[repr(C)]
pub struct Slice {
    pub data: *const u8,
    pub size: usize,
}

impl Slice {
    /// # Safety
    /// `data` must be readable for `size` bytes while the result is in use.
    pub unsafe fn bytes<'a>(self) -> &'a [u8] {
        if self.size == 0 || self.data.is_null() {
            &[]
        } else {
            std::slice::from_raw_parts(self.data, self.size)
        }
    }

    /// # Safety
    /// As for `bytes`.
    pub unsafe fn text<'a>(self, what: &str) -> Result<&'a str, Failure> {
        std::str::from_utf8(self.bytes()).map_err(|e| {
            Failure::invalid(format!(
                "{what} is not valid UTF-8 (byte {})",
                e.valid_up_to()
            ))
        })
    }
}

/// How the C++ side turns token bytes into text; see `scheme.rs`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct DecodeScheme {
    /// 0: bytes joined and read as UTF-8 (byte level); 1: pieces of text.
    pub kind: u32,
    /// How many leading `strip_char` are taken off the joined text.
    pub strip_left: u32,
    pub strip_char: u32,
}
