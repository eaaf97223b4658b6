//! What comes in protobuf is read as a watch of the API server is, without one: for
//! [`crate::paths`].

use ferrule_core::issue::Kind;

use super::failure::Failure;
use super::format::{Events, Format, Objects};
pub use super::intake::Shape;
use super::intake::{Intake, ListMetadata};

/// What is read, and the shape it arrives in.
type Arriving = (Kind, Shape);

/// Reads a list; how many events it made.
pub fn list<'a>(what: Arriving, pieces: impl Iterator<Item = &'a [u8]>) -> Result<usize, Failure> {
    let mut intake = intake(what);
    let mut objects = Objects::of(Format::Protobuf);
    for piece in pieces {
        objects.feed(piece, |object| intake.item(Format::Protobuf, object))?;
    }
    ListMetadata::read(Format::Protobuf, &objects.finish()?)?;
    intake.end_list();
    Ok(intake.take().len())
}

/// Reads a watch; how many events it made.
pub fn watch<'a>(what: Arriving, pieces: impl Iterator<Item = &'a [u8]>) -> Result<usize, Failure> {
    let mut intake = intake(what);
    let mut events = Events::of(Format::Protobuf);
    for piece in pieces {
        events.feed(piece)?;
        while let Some(event) = events.pop()? {
            intake.event(Format::Protobuf, &event)?;
        }
    }
    Ok(intake.take().len())
}

fn intake((kind, shape): Arriving) -> Intake {
    let mut intake = Intake::new(kind, "a");
    intake.begin_list(shape);
    intake
}
