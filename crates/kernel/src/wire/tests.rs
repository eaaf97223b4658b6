//! The writer against the reader, and the reader against anything.

use proptest::prelude::*;

use super::*;

/// The bytes of a file in `testdata`.
pub fn bytes(hex: &str) -> Vec<u8> {
    let rows = hex.lines().filter(|line| !line.starts_with('#'));
    rows.flat_map(str::split_whitespace)
        .map(|byte| u8::from_str_radix(byte, 16).unwrap())
        .collect()
}

fn sample() -> Writer {
    let mut writer = Writer::new();
    let start = writer.begin(0xa03, NLM_F_REQUEST, 7);
    writer.raw(&[2, 0, 0, 0]);
    writer.text(1, "kube-proxy");
    writer.nest(4, |writer| {
        writer.u32_be(1, 0x0102_0304);
        writer.nest(2, |writer| writer.u8(9, 5));
        writer.u64_be(3, 6);
    });
    writer.end(start);
    writer
}

#[test]
fn what_is_written_is_read_back() {
    let writer = sample();
    let message = messages(writer.bytes()).next().unwrap().unwrap();
    assert_eq!((message.kind, message.flags), (0xa03, NLM_F_REQUEST));
    assert_eq!((message.sequence, message.port), (7, 0));
    let attrs: Vec<_> = message.attributes(4).unwrap().map(Result::unwrap).collect();
    assert_eq!(attrs[0].text(), "kube-proxy");
    let inner: Vec<_> = attrs[1].nested().map(Result::unwrap).collect();
    assert_eq!(inner[0].u32_be(), Ok(0x0102_0304));
    let innermost = inner[1].nested().next().unwrap().unwrap();
    assert_eq!((innermost.kind, innermost.u8()), (9, Ok(5)));
    assert_eq!(inner[2].u64_be(), Ok(6));
    assert!(inner[2].u32_be().is_err());
}

#[test]
fn attributes_are_padded_to_four_bytes() {
    let mut writer = Writer::new();
    writer.u8(1, 0xff);
    writer.text(2, "abc");
    let expected: &[u8] = &[
        5, 0, 1, 0, 0xff, 0, 0, 0, // one byte and three of padding
        8, 0, 2, 0, b'a', b'b', b'c', 0,
    ];
    if cfg!(target_endian = "little") {
        assert_eq!(writer.bytes(), expected);
    }
}

#[test]
fn the_longest_attribute_fits_and_one_byte_more_is_noticed() {
    let mut writer = Writer::new();
    writer.attr(1, &vec![0; LONGEST_ATTRIBUTE - 4]);
    assert!(!writer.overflowed());
    writer.attr(1, &vec![0; LONGEST_ATTRIBUTE - 3]);
    assert!(writer.overflowed());
}

#[test]
fn a_nest_that_grows_too_long_is_noticed() {
    let mut writer = Writer::new();
    writer.nest(1, |writer| {
        for _ in 0..LONGEST_ATTRIBUTE / 8 {
            writer.u32_be(1, 0);
        }
    });
    assert!(!writer.overflowed());
    writer.nest(1, |writer| {
        for _ in 0..=LONGEST_ATTRIBUTE / 8 {
            writer.u32_be(1, 0);
        }
    });
    assert!(writer.overflowed());
}

#[test]
fn flags_can_be_changed_later() {
    let mut writer = sample();
    writer.set_flags(0, NLM_F_ACK, true);
    let flags = |writer: &Writer| messages(writer.bytes()).next().unwrap().unwrap().flags;
    assert_eq!(flags(&writer), NLM_F_REQUEST | NLM_F_ACK);
    writer.set_flags(0, NLM_F_ACK, false);
    assert_eq!(flags(&writer), NLM_F_REQUEST);
}

#[test]
fn lengths_that_lie_end_the_reading() {
    for len in [0_u32, 3, 15, 17, u32::MAX] {
        let mut bytes = sample().bytes()[..16].to_vec();
        bytes[..4].copy_from_slice(&len.to_ne_bytes());
        let read: Vec<_> = messages(&bytes).collect();
        assert_eq!(read.len(), 1, "{len}");
        assert!(read[0].is_err(), "{len}");
    }
    for len in [0_u16, 3, 9, u16::MAX] {
        let mut bytes = [0; 8];
        bytes[..2].copy_from_slice(&len.to_ne_bytes());
        let read: Vec<_> = attributes(&bytes).collect();
        assert_eq!(read.len(), 1, "{len}");
        assert!(read[0].is_err(), "{len}");
    }
}

/// Reads everything there is, as deep as attributes go.
fn exhaust(bytes: &[u8]) {
    fn dive(attrs: Attributes<'_>, depth: usize) {
        for attr in attrs.flatten() {
            let _ = (attr.u8(), attr.u16_be(), attr.u32_ne(), attr.u64_be());
            let _ = attr.text();
            if depth < 8 {
                dive(attr.nested(), depth + 1);
            }
        }
    }
    for message in messages(bytes).flatten() {
        for header in [0, 1, 4, 16] {
            message.attributes(header).map(|a| dive(a, 0)).ok();
        }
    }
}

proptest! {
    #[test]
    fn no_bytes_make_the_reader_panic(bytes in proptest::collection::vec(any::<u8>(), 0..256)) {
        exhaust(&bytes);
        attributes(&bytes).for_each(drop);
    }

    #[test]
    fn no_damage_makes_the_reader_panic(
        damage in proptest::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..6),
        keep in any::<prop::sample::Index>(),
    ) {
        let mut bytes = sample().bytes().to_vec();
        for (at, byte) in damage {
            let at = at.index(bytes.len());
            bytes[at] = byte;
        }
        exhaust(&bytes);
        exhaust(&bytes[..keep.index(bytes.len())]);
    }
}
