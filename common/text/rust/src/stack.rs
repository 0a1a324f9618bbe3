//! A deep stack for work that recurses as far as its input says. Each thread keeps one: mapping and
//! unmapping it costs more than what usually runs on it.

use std::cell::Cell;
use std::panic::{catch_unwind, resume_unwind, AssertUnwindSafe};
use std::time::{Duration, Instant};

use crate::boundary::{Failure, Status};

/// Only what is used becomes resident.
const STACK_BYTES: usize = 1 << 30;
/// Below the stack; an overflow faults here.
const GUARD_BYTES: usize = 64 << 10;
/// Of the part that a long use has touched, how much stays resident.
const KEPT_BYTES: usize = 256 << 10;
/// A shorter use cannot have touched more than a few MiB: each new page takes a fault.
const LONG: Duration = Duration::from_micros(200);

thread_local! {
    /// None while it is in use: a use within a use gets a stack of its own.
    static IDLE: Cell<Option<Stack>> = const { Cell::new(None) };
}

struct Stack {
    mapping: *mut libc::c_void,
}

impl Stack {
    fn map() -> Result<Stack, Failure> {
        let failed = || {
            let why = std::io::Error::last_os_error();
            Failure::new(Status::Internal, format!("no memory for a stack: {why}"))
        };
        // SAFETY: a new private mapping; nothing else refers to it. MAP_STACK keeps huge pages away,
        // each of which would have to be cleared for a few KiB of use.
        unsafe {
            let mapping = libc::mmap(
                std::ptr::null_mut(),
                GUARD_BYTES + STACK_BYTES,
                libc::PROT_READ | libc::PROT_WRITE,
                libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE | libc::MAP_STACK,
                -1,
                0,
            );
            if mapping == libc::MAP_FAILED {
                return Err(failed());
            }
            let stack = Stack { mapping };
            if libc::mprotect(mapping, GUARD_BYTES, libc::PROT_NONE) != 0 {
                return Err(failed());
            }
            Ok(stack)
        }
    }

    fn base(&self) -> *mut u8 {
        self.mapping.cast::<u8>().wrapping_add(GUARD_BYTES)
    }

    /// Gives the memory of a deep use back.
    fn trim(&self) {
        // SAFETY: within the mapping, and nothing runs on it. A failure only leaves memory in use.
        unsafe {
            libc::madvise(
                self.base().cast(),
                STACK_BYTES - KEPT_BYTES,
                libc::MADV_DONTNEED,
            );
        }
    }
}

impl Drop for Stack {
    fn drop(&mut self) {
        // SAFETY: our own mapping, which nothing runs on any more.
        unsafe { libc::munmap(self.mapping, GUARD_BYTES + STACK_BYTES) };
    }
}

/// Runs `work` on this thread, on a stack of 1 GiB. A panic goes on in the caller.
pub fn on_deep_stack<R>(work: impl FnOnce() -> R) -> Result<R, Failure> {
    // try_with: a thread that is ending has no idle stack any more.
    let idle = IDLE.try_with(Cell::take).ok().flatten();
    let stack = idle.map_or_else(Stack::map, Ok)?;
    let start = Instant::now();
    // SAFETY: page-aligned, writable but for the guard below it, held until the call returns; the
    // closure does not unwind.
    let result = unsafe {
        psm::on_stack(stack.base(), STACK_BYTES, || {
            catch_unwind(AssertUnwindSafe(work))
        })
    };
    if start.elapsed() >= LONG {
        stack.trim();
    }
    let _ = IDLE.try_with(|idle| idle.set(Some(stack)));
    result.or_else(|panic| resume_unwind(panic))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn descend(levels: usize) -> usize {
        let frame = std::hint::black_box([levels; 64]);
        if levels == 0 {
            return 0;
        }
        descend(levels - 1) + usize::from(frame[0] > 0)
    }

    fn resident_kib() -> usize {
        let statm = std::fs::read_to_string("/proc/self/statm").unwrap();
        statm.split(' ').nth(1).unwrap().parse::<usize>().unwrap() * 4
    }

    #[test]
    fn deep_recursion_fits_and_its_memory_is_given_back() {
        let before = resident_kib();
        // 200,000 frames of at least 512 bytes: beyond any thread's own stack.
        assert_eq!(on_deep_stack(|| descend(200_000)).unwrap(), 200_000);
        assert!(resident_kib() < before + (32 << 10));
        assert_eq!(on_deep_stack(|| descend(10)).unwrap(), 10);
    }

    #[test]
    fn uses_nest() {
        let inner = on_deep_stack(|| on_deep_stack(|| descend(50_000)).unwrap() + 1).unwrap();
        assert_eq!(inner, 50_001);
    }

    #[test]
    fn a_panic_reaches_the_caller_and_the_stack_stays_usable() {
        let caught = catch_unwind(|| on_deep_stack(|| -> usize { panic!("as told") }));
        assert_eq!(
            *caught.unwrap_err().downcast_ref::<&str>().unwrap(),
            "as told"
        );
        assert_eq!(on_deep_stack(|| descend(10)).unwrap(), 10);
    }
}
