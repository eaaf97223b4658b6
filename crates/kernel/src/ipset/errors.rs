//! What the kernel means by errors that only sets have.

use std::io::{Error, ErrorKind};

use crate::exchange::RequestError;

/// The first error that is not one of all of Linux.
const FIRST: i32 = 4096;

/// The same error, in words where the kernel gave a number of its own.
pub(super) fn explained(error: RequestError) -> RequestError {
    let RequestError::Refused { message, source } = error else {
        return error;
    };
    let source = match source.raw_os_error() {
        Some(number @ FIRST..) => explain(number),
        _ => source,
    };
    RequestError::Refused { message, source }
}

fn explain(number: i32) -> Error {
    let (kind, words) = match number {
        4097 => (
            ErrorKind::Unsupported,
            "this kernel speaks another protocol",
        ),
        4098 => (
            ErrorKind::Unsupported,
            "this kernel has no sets of this type",
        ),
        4099 => (ErrorKind::StorageFull, "there are too many sets"),
        4100 => (ErrorKind::ResourceBusy, "a rule uses the set"),
        4101 => (ErrorKind::AlreadyExists, "a set has the new name"),
        4102 => (ErrorKind::InvalidInput, "the sets are of different types"),
        4103 => (ErrorKind::AlreadyExists, "it exists, or is not there"),
        4104 => (ErrorKind::InvalidInput, "wrong prefix length"),
        4106 => (ErrorKind::InvalidInput, "wrong family"),
        4108 => (ErrorKind::ResourceBusy, "a rule or a set uses the set"),
        4109 => (ErrorKind::InvalidInput, "the address must be of IPv4"),
        4110 => (ErrorKind::InvalidInput, "the address must be of IPv6"),
        // From here on each type has its own, but with its first one every hash says the same.
        4352 => (ErrorKind::StorageFull, "the set is full"),
        4354 => (ErrorKind::InvalidInput, "wrong protocol"),
        _ => return Error::other(format!("error {number} of ipset")),
    };
    Error::new(kind, words)
}
