//! As much of SCTP as it takes to begin an association: kernels without it still pass it on.
//!
//! A packet is a header of twelve bytes with a checksum, and one chunk: INIT, or the INIT ACK that
//! answers it. The text at its end is ours.

/// Ports, tag and checksum.
const HEADER: usize = 12;

/// Kind, flags, length; then a tag and what nobody here reads.
const CHUNK: usize = 20;

const INIT: u8 = 1;
const INIT_ACK: u8 = 2;

/// A packet that begins an association or agrees to one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Packet {
    pub from: u16,
    pub to: u16,
    /// The tag by which the other side wants to be called.
    pub tag: u32,
    /// For an answer, the tag of the one who asked.
    pub answers: Option<u32>,
    pub text: Vec<u8>,
}

impl Packet {
    pub fn bytes(&self) -> Vec<u8> {
        let kind = if self.answers.is_some() {
            INIT_ACK
        } else {
            INIT
        };
        // Of the text only the last parameter's four bytes are not ours.
        let parameter = 4 + self.text.len();
        let length = u16::try_from(CHUNK + parameter).unwrap();
        let mut bytes = Vec::new();
        bytes.extend(self.from.to_be_bytes());
        bytes.extend(self.to.to_be_bytes());
        bytes.extend(self.answers.unwrap_or(0).to_be_bytes());
        bytes.extend([0; 4]);
        bytes.extend([kind, 0]);
        bytes.extend(length.to_be_bytes());
        bytes.extend(self.tag.to_be_bytes());
        bytes.extend(65536_u32.to_be_bytes());
        bytes.extend([0, 1, 0, 1, 0, 0, 0, 1]);
        // A parameter that whoever does not know it passes over.
        bytes.extend([0xc0, 0x42]);
        bytes.extend(u16::try_from(parameter).unwrap().to_be_bytes());
        bytes.extend(&self.text);
        while bytes.len() % 4 != 0 {
            bytes.push(0);
        }
        let sum = checksum(&bytes);
        bytes[8..12].copy_from_slice(&sum.to_le_bytes());
        bytes
    }

    /// Reads a packet; `None` if it is another one or its checksum is wrong.
    pub fn read(bytes: &[u8]) -> Option<Self> {
        let half = |at| Some(u16::from_be_bytes(*bytes.get(at..)?.first_chunk()?));
        let word = |at| Some(u32::from_be_bytes(*bytes.get(at..)?.first_chunk()?));
        let mut blank = bytes.to_vec();
        blank.get_mut(8..12)?.fill(0);
        if checksum(&blank).swap_bytes() != word(8)? {
            return None;
        }
        let answers = match *bytes.get(HEADER)? {
            INIT => None,
            INIT_ACK => Some(word(4)?),
            _ => return None,
        };
        let end = HEADER + usize::from(half(HEADER + 2)?);
        Some(Self {
            from: half(0)?,
            to: half(2)?,
            tag: word(HEADER + 4)?,
            answers,
            text: bytes.get(HEADER + CHUNK + 4..end)?.to_vec(),
        })
    }
}

/// The checksum named `CRC32c`, bit by bit.
fn checksum(bytes: &[u8]) -> u32 {
    let mut crc = u32::MAX;
    for byte in bytes {
        crc ^= u32::from(*byte);
        for _ in 0..8 {
            crc = (crc >> 1) ^ (0x82f6_3b78 & (crc & 1).wrapping_neg());
        }
    }
    !crc
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_checksum_is_the_one_of_the_standard() {
        assert_eq!(checksum(b"123456789"), 0xe306_9283);
    }

    #[test]
    fn packets_are_read_as_they_were_written() {
        let packet = Packet {
            from: 4000,
            to: 80,
            tag: 7,
            answers: Some(9),
            text: b"1 10.0.0.1".to_vec(),
        };
        let mut bytes = packet.bytes();
        assert_eq!(Packet::read(&bytes), Some(packet));
        bytes[1] ^= 1;
        assert_eq!(Packet::read(&bytes), None);
    }
}
