//! A tar file in the format `ustar`, of plain files.

use jiff::Timestamp;

/// The unit of a tar file.
const BLOCK: usize = 512;

/// A tar file in the making.
#[derive(Debug)]
pub struct Tar {
    bytes: Vec<u8>,
    seconds: u64,
}

impl Tar {
    /// Without files; those that come are of this time.
    pub fn new(time: Timestamp) -> Self {
        Self {
            bytes: Vec::new(),
            seconds: u64::try_from(time.as_second()).unwrap_or(0),
        }
    }

    /// Adds a file that its owner may read. Names are ours: short, and ASCII.
    pub fn add(&mut self, name: &str, content: &[u8]) {
        let mut header = [0; BLOCK];
        put(&mut header, 0, &name.as_bytes()[..name.len().min(100)]);
        put(&mut header, 100, b"0000600\0");
        put(&mut header, 108, b"0000000\0");
        put(&mut header, 116, b"0000000\0");
        put(
            &mut header,
            124,
            format!("{:011o}\0", content.len()).as_bytes(),
        );
        put(
            &mut header,
            136,
            format!("{:011o}\0", self.seconds).as_bytes(),
        );
        // The checksum is made with spaces in its place.
        put(&mut header, 148, b"        ");
        put(&mut header, 156, b"0");
        put(&mut header, 257, b"ustar\x0000");
        put(&mut header, 265, b"root");
        put(&mut header, 297, b"root");
        let sum: u32 = header.iter().map(|byte| u32::from(*byte)).sum();
        put(&mut header, 148, format!("{sum:06o}\0 ").as_bytes());
        self.bytes.extend_from_slice(&header);
        self.bytes.extend_from_slice(content);
        let end = self.bytes.len().next_multiple_of(BLOCK);
        self.bytes.resize(end, 0);
    }

    /// The whole file.
    pub fn finish(mut self) -> Vec<u8> {
        let end = self.bytes.len() + 2 * BLOCK;
        self.bytes.resize(end, 0);
        self.bytes
    }
}

fn put(header: &mut [u8; BLOCK], at: usize, bytes: &[u8]) {
    header[at..at + bytes.len()].copy_from_slice(bytes);
}

#[cfg(test)]
mod tests {
    use std::fs;

    use ferrule_testbed::run;

    use super::*;

    #[test]
    fn tar_itself_reads_what_is_written() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("x.tar");
        let mut tar = Tar::new("2026-01-02T03:04:05Z".parse().unwrap());
        let large = "large\n".repeat(1000);
        let files = [
            ("a/empty", ""),
            ("a/b/large", large.as_str()),
            ("a/512", &large[..512]),
        ];
        for (name, content) in files {
            tar.add(name, content.as_bytes());
        }
        fs::write(&path, tar.finish()).unwrap();
        let (archive, into) = (path.to_str().unwrap(), folder.path().to_str().unwrap());
        let listed = run("tar", &["-tvf", archive, "--utc"]);
        assert!(listed.contains("-rw------- root/root"), "{listed}");
        assert!(listed.contains("2026-01-02 03:04"), "{listed}");
        run("tar", &["-xf", archive, "-C", into]);
        for (name, content) in files {
            let read = fs::read_to_string(folder.path().join(name)).unwrap();
            assert_eq!(read, content, "{name}");
        }
    }
}
