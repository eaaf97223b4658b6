//! JSON or protobuf: what is asked for, what an answer is in, and how it is cut into parts.
//!
//! In: the configuration, and the headers of an answer. Out: a [`Format`], and for each the parts of
//! a watch ([`Events`]) or of a list ([`Objects`]).

use bytes::Bytes;
use http::HeaderMap;
use http::header::CONTENT_TYPE;

use super::failure::Failure;
use super::frames::{Items, Lines};
use super::protobuf;

/// How objects are written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Format {
    Json,
    Protobuf,
}

impl Format {
    /// What `clientConnection` asks for. As in client-go, `acceptContentTypes` says what answers may
    /// be in, and where it says nothing `contentType` does.
    pub fn wanted(content_type: &str, accept: &str) -> Self {
        let accept = accept.trim();
        let types = if accept.is_empty() {
            content_type
        } else {
            accept
        };
        if types.contains(protobuf::MEDIA_TYPE) {
            Self::Protobuf
        } else {
            Self::Json
        }
    }

    /// The header that asks for it. Servers that do not offer protobuf may answer in JSON.
    pub const fn accept(self) -> &'static str {
        match self {
            Self::Json => "application/json",
            Self::Protobuf => "application/vnd.kubernetes.protobuf, application/json;q=0.9",
        }
    }

    /// What an answer with these headers is in.
    pub fn of(headers: &HeaderMap) -> Self {
        let value = headers.get(CONTENT_TYPE);
        let text = value.and_then(|value| value.to_str().ok());
        if text.is_some_and(|text| text.trim_start().starts_with(protobuf::MEDIA_TYPE)) {
            Self::Protobuf
        } else {
            Self::Json
        }
    }
}

/// Pieces of a watch in, its events out.
#[derive(Debug)]
pub enum Events {
    Json(Lines),
    Protobuf(protobuf::Frames),
}

impl Events {
    pub fn of(format: Format) -> Self {
        match format {
            Format::Json => Self::Json(Lines::default()),
            Format::Protobuf => Self::Protobuf(protobuf::Frames::default()),
        }
    }

    pub fn feed(&mut self, piece: &[u8]) -> Result<(), Failure> {
        match self {
            Self::Json(lines) => lines.feed(piece),
            Self::Protobuf(frames) => {
                frames.feed(piece);
                Ok(())
            }
        }
    }

    /// The next event, once it is complete.
    pub fn pop(&mut self) -> Result<Option<Bytes>, Failure> {
        match self {
            Self::Json(lines) => Ok(lines.pop()),
            Self::Protobuf(frames) => frames.pop(),
        }
    }

    /// Whether part of an event is left over.
    pub fn is_inside(&self) -> bool {
        match self {
            Self::Json(lines) => lines.is_inside(),
            Self::Protobuf(frames) => frames.is_inside(),
        }
    }
}

/// Pieces of a list in, its objects out.
#[derive(Debug)]
pub enum Objects {
    Json(Items),
    Protobuf(protobuf::Items),
}

impl Objects {
    pub fn of(format: Format) -> Self {
        match format {
            Format::Json => Self::Json(Items::default()),
            Format::Protobuf => Self::Protobuf(protobuf::Items::default()),
        }
    }

    /// Takes a piece in and hands every object that is now complete to `each`.
    pub fn feed(
        &mut self,
        piece: &[u8],
        each: impl FnMut(&[u8]) -> Result<(), Failure>,
    ) -> Result<(), Failure> {
        match self {
            Self::Json(items) => items.feed(piece, each),
            Self::Protobuf(items) => items.feed(piece, each),
        }
    }

    /// What is around the objects, once the list is complete.
    pub fn finish(self) -> Result<Vec<u8>, Failure> {
        match self {
            Self::Json(items) => items.finish(),
            Self::Protobuf(items) => items.finish(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_configuration_chooses_as_in_client_go() {
        let protobuf = "application/vnd.kubernetes.protobuf";
        let json = "application/json";
        let both = "application/vnd.kubernetes.protobuf,application/json";
        for (content_type, accept, wanted) in [
            (protobuf, "", Format::Protobuf),
            (json, "", Format::Json),
            (protobuf, json, Format::Json),
            (json, both, Format::Protobuf),
            (protobuf, " ", Format::Protobuf),
        ] {
            let found = Format::wanted(content_type, accept);
            assert_eq!(found, wanted, "{content_type:?} {accept:?}");
        }
    }

    #[test]
    fn an_answer_is_in_what_its_header_says() {
        let of = |value: &'static str| {
            let mut headers = HeaderMap::new();
            headers.insert(CONTENT_TYPE, value.parse().unwrap());
            Format::of(&headers)
        };
        assert_eq!(of("application/vnd.kubernetes.protobuf"), Format::Protobuf);
        assert_eq!(
            of("application/vnd.kubernetes.protobuf;stream=watch"),
            Format::Protobuf
        );
        assert_eq!(of("application/json"), Format::Json);
        assert_eq!(of("text/html"), Format::Json);
        assert_eq!(Format::of(&HeaderMap::new()), Format::Json);
    }
}
