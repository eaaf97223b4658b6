//! How this process keeps its memory.
//!
//! A large cluster is read, decided and programmed once, in different threads, and then little
//! happens. Memory that these steps freed is of use to each other and then to nobody.
#![expect(
    unsafe_code,
    reason = "the allocator of the C library is asked; no pointers are involved"
)]

/// From this size on, memory is taken from the system by itself and given back at once.
#[cfg(target_env = "gnu")]
const LARGE: libc::c_int = 128 * 1024;

/// Limits malloc to one arena for all threads, so that what one freed serves the next, and keeps
/// large lists out of it, so that they leave no holes. Call it before there are threads.
///
/// At 10,000 Services this is a third of the peak.
pub fn limit_arenas() {
    #[cfg(target_env = "gnu")]
    // SAFETY: takes two numbers and keeps nothing of ours. Where it fails, more memory is used.
    unsafe {
        libc::mallopt(libc::M_ARENA_MAX, 1);
        // By default this grows with what was used, up to 32 MiB.
        libc::mallopt(libc::M_MMAP_THRESHOLD, LARGE);
    }
}

/// Gives free memory back to the system.
pub fn trim() {
    #[cfg(target_env = "gnu")]
    // SAFETY: takes a number; only touches memory that nobody uses.
    unsafe {
        libc::malloc_trim(0);
    }
}
