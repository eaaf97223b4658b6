//! Answers that the API server packed: it does so with long lists, for who says that it can unpack.
//!
//! In: pieces of a body as they arrive. Out: the same pieces unpacked. Watches are never asked for
//! packed: servers pack each of their events by itself, which saves little and costs both sides.

use std::io::{self, Write as _};

use flate2::write::MultiGzDecoder;
use http::header::CONTENT_ENCODING;
use http::{HeaderMap, HeaderValue};

use super::failure::Failure;
use super::frames::garbled;

/// What `Accept-Encoding` says.
pub const ACCEPTED: &str = "gzip";

/// So much is unpacked at a time. It becomes at most a thousand times more.
const STEP: usize = 4 << 10;

/// How the body of an answer is packed.
#[derive(Debug)]
pub enum Packing {
    /// Not at all.
    Plain,
    Gzip(Box<MultiGzDecoder<Vec<u8>>>),
}

impl Packing {
    /// What an answer with these headers is packed by.
    pub fn of(headers: &HeaderMap) -> Result<Self, Failure> {
        let name = headers.get(CONTENT_ENCODING).map(HeaderValue::as_bytes);
        match name {
            None | Some(b"" | b"identity") => Ok(Self::Plain),
            Some(name) if name.eq_ignore_ascii_case(b"gzip") => {
                Ok(Self::Gzip(Box::new(MultiGzDecoder::new(Vec::new()))))
            }
            Some(_) => Err(garbled("it is packed in a way that was not asked for")),
        }
    }

    /// Hands what a piece contains to `each`, in parts that do not grow with the piece.
    pub fn unpack(
        &mut self,
        piece: &[u8],
        mut each: impl FnMut(&[u8]) -> Result<(), Failure>,
    ) -> Result<(), Failure> {
        let Self::Gzip(decoder) = self else {
            return each(piece);
        };
        for step in piece.chunks(STEP) {
            decoder.write_all(step).map_err(damaged)?;
            each(decoder.get_ref())?;
            decoder.get_mut().clear();
        }
        Ok(())
    }

    /// Hands the rest to `each`, and checks that it is all.
    pub fn finish(self, each: impl FnOnce(&[u8]) -> Result<(), Failure>) -> Result<(), Failure> {
        let Self::Gzip(decoder) = self else {
            return Ok(());
        };
        each(&decoder.finish().map_err(damaged)?)
    }
}

fn damaged(error: io::Error) -> Failure {
    Failure::Garbled {
        what: "it cannot be unpacked",
        source: Some(error.into()),
    }
}

#[cfg(test)]
mod tests {
    use flate2::Compression;
    use flate2::write::GzEncoder;

    use super::*;

    fn packed(text: &[u8]) -> Vec<u8> {
        let mut encoder = GzEncoder::new(Vec::new(), Compression::fast());
        encoder.write_all(text).unwrap();
        encoder.finish().unwrap()
    }

    fn packing(name: &str) -> Result<Packing, Failure> {
        let mut headers = HeaderMap::new();
        headers.insert(CONTENT_ENCODING, name.parse().unwrap());
        Packing::of(&headers)
    }

    fn unpacked(pieces: &[&[u8]]) -> Result<Vec<u8>, Failure> {
        let mut packing = packing("gzip")?;
        let mut all = Vec::new();
        for piece in pieces {
            packing.unpack(piece, |part| {
                assert!(part.len() < 8 << 20, "{}", part.len());
                all.extend_from_slice(part);
                Ok(())
            })?;
        }
        packing.finish(|part| {
            all.extend_from_slice(part);
            Ok(())
        })?;
        Ok(all)
    }

    #[test]
    fn what_was_packed_comes_out_whatever_the_pieces() {
        let text: Vec<u8> = (0..5000_u32).flat_map(u32::to_be_bytes).collect();
        // Two in one answer are one text, as gzip has it.
        let both = [packed(&text), packed(b"end")].concat();
        let expected = [&text[..], b"end"].concat();
        for size in [1, 7, 100, both.len()] {
            let pieces: Vec<&[u8]> = both.chunks(size).collect();
            assert_eq!(unpacked(&pieces).unwrap(), expected, "in pieces of {size}");
        }
    }

    #[test]
    fn every_damage_is_an_error_or_unseen_by_checksums() {
        let whole = packed(&b"some text that is packed ".repeat(8));
        for end in 0..whole.len() {
            let result = unpacked(&[&whole[..end]]);
            assert!(result.is_err(), "{end}: {result:?}");
        }
        let mut harmless = 0;
        for bit in 0..whole.len() * 8 {
            let mut turned = whole.clone();
            turned[bit / 8] ^= 1 << (bit % 8);
            let result = unpacked(&[&turned]);
            // A time or a name in the header, which mean nothing.
            harmless += usize::from(result.is_ok_and(|text| text.len() == 200));
        }
        assert!(harmless < 100, "{harmless}");
    }

    #[test]
    fn a_bomb_comes_in_small_parts() {
        let bomb = packed(&vec![0; 64 << 20]);
        assert!(bomb.len() < 1 << 20);
        assert_eq!(unpacked(&[&bomb]).unwrap().len(), 64 << 20);
    }

    #[test]
    fn only_what_was_asked_for_is_taken() {
        assert!(matches!(packing("identity"), Ok(Packing::Plain)));
        assert!(matches!(packing("GZip"), Ok(Packing::Gzip(_))));
        assert!(packing("br").is_err());
        assert!(matches!(Packing::of(&HeaderMap::new()), Ok(Packing::Plain)));
    }
}
