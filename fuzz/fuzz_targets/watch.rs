//! Anything at all as what the API server sends in protobuf.
//!
//! The first byte says what is read, and in which pieces it comes. Nothing may panic, and however the
//! bytes are cut, they mean the same.
#![no_main]

use ferrule::paths::{Collection, read_list, read_watch};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|input: &[u8]| {
    let Some((first, bytes)) = input.split_first() else {
        return;
    };
    let first = usize::from(*first);
    let of = Collection::ALL[first / 2 % Collection::ALL.len()];
    let read = if first % 2 == 0 { read_list } else { read_watch };
    let piece = 1 + first / 10;
    assert_eq!(read(of, bytes, bytes.len()), read(of, bytes, piece));
});
