//! What a file or block device holds that is about to become a store.
//!
//! Thread safety: free functions. Invariants: nothing is written; a regular file is empty only if no byte of
//! it was ever written, a block device only if every byte that is looked at is zero and no signature is on
//! it.

use std::fmt;
use std::fs::File;
use std::io;
use std::os::unix::fs::{FileExt, FileTypeExt};

use rustix::fs::SeekFrom;
use rustix::io::Errno;

use kvfs_service::units::human_bytes;

/// Looked at as a whole, at the begin and at the end of a block device (bytes).
const EDGE_BYTES: u64 = 1 << 20;

/// Samples between the edges, and how long each is (bytes).
const SAMPLES: u64 = 256;
const SAMPLE_BYTES: u64 = 4096;

/// What is there.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Contents {
    /// By its signature.
    Known(&'static str),
    /// No known signature, and so much data (bytes; `None`: of a block device).
    Unknown(Option<u64>),
}

impl fmt::Display for Contents {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Known(name) => f.write_str(name),
            Self::Unknown(Some(bytes)) => write!(f, "{} of data of an unknown kind", human_bytes(*bytes)),
            Self::Unknown(None) => f.write_str("data of an unknown kind"),
        }
    }
}

/// Bytes at a place that tell what a device or file holds. More special ones come first.
struct Signature {
    name: &'static str,
    offset: u64,
    magic: &'static [u8],
}

const fn signature(name: &'static str, offset: u64, magic: &'static [u8]) -> Signature {
    Signature { name, offset, magic }
}

/// From the format descriptions, as libblkid and file(1) know them.
const SIGNATURES: &[Signature] = &[
    signature("a kvfs store", 0, b"\x89kvfs\r\n\x1a"),
    signature("a kvfs store", 32768, b"\x89kvfs\r\n\x1a"),
    signature("a device of a kvfs store", 0, b"\x89kvfsM\r\n"),
    signature("an encrypted LUKS volume", 0, b"LUKS\xba\xbe"),
    signature("a BitLocker volume", 3, b"-FVE-FS-"),
    signature("an LVM physical volume", 536, b"LVM2 001"),
    signature("a member of a RAID (md)", 0, b"\xfc\x4e\x2b\xa9"),
    signature("a member of a RAID (md)", 4096, b"\xfc\x4e\x2b\xa9"),
    signature("a bcache device", 4120, b"\xc6\x85\x73\xf6\x4e\x1a\x45\xca\x82\x65\xf5\x7f\x48\xba\x6d\x81"),
    signature(
        "a bcachefs file system",
        4120,
        b"\xc6\x85\x73\xf6\x66\xce\x90\xa9\xd9\x6a\x60\xcf\x80\x3d\xf7\xef",
    ),
    signature("a ZFS pool", 131_072, b"\x0c\xb1\xba\x00"),
    signature("a ZFS pool", 131_072, b"\x00\xba\xb1\x0c"),
    signature("an XFS file system", 0, b"XFSB"),
    signature("a btrfs file system", 65_600, b"_BHRfS_M"),
    signature("an ext2, ext3 or ext4 file system", 1080, b"\x53\xef"),
    signature("an F2FS file system", 1024, b"\x10\x20\xf5\xf2"),
    signature("an EROFS file system", 1024, b"\xe2\xe1\xf5\xe0"),
    signature("a SquashFS file system", 0, b"hsqs"),
    signature("a ReiserFS file system", 65_588, b"ReIsEr"),
    signature("a JFS file system", 32_768, b"JFS1"),
    signature("an NTFS file system", 3, b"NTFS    "),
    signature("an exFAT file system", 3, b"EXFAT   "),
    signature("a FAT file system", 54, b"FAT1"),
    signature("a FAT file system", 82, b"FAT32   "),
    signature("an ISO 9660 image", 32_769, b"CD001"),
    signature("a UDF file system", 32_769, b"BEA01"),
    signature("swap space", 4086, b"SWAPSPACE2"),
    signature("swap space", 4086, b"SWAP-SPACE"),
    signature("swap space", 65_526, b"SWAPSPACE2"),
    signature("a GPT partition table", 512, b"EFI PART"),
    signature("a GPT partition table", 4096, b"EFI PART"),
    signature("a QCOW disk image", 0, b"QFI\xfb"),
    signature("a VMware disk image", 0, b"KDMV"),
    signature("a VirtualBox disk image", 64, b"\x7f\x10\xda\xbe"),
    signature("a Hyper-V disk image", 0, b"vhdxfile"),
    signature("a program (ELF)", 0, b"\x7fELF"),
    signature("a script", 0, b"#!"),
    signature("a gzip archive", 0, b"\x1f\x8b"),
    signature("an xz archive", 0, b"\xfd7zXZ\x00"),
    signature("a Zstandard archive", 0, b"\x28\xb5\x2f\xfd"),
    signature("a bzip2 archive", 0, b"BZh"),
    signature("a ZIP archive", 0, b"PK\x03\x04"),
    signature("a 7-Zip archive", 0, b"7z\xbc\xaf\x27\x1c"),
    signature("a tar archive", 257, b"ustar"),
    signature("an SQLite database", 0, b"SQLite format 3\x00"),
    signature("a PDF document", 0, b"%PDF"),
    signature("a PNG image", 0, b"\x89PNG\r\n\x1a\n"),
    signature("a JPEG image", 0, b"\xff\xd8\xff"),
    signature("a partition table or boot sector", 510, b"\x55\xaa"),
];

/// What `file` holds; `None`: nothing.
pub(crate) fn find(file: &File) -> io::Result<Option<Contents>> {
    if !file.metadata()?.file_type().is_block_device() {
        let bytes = data_bytes(file)?;
        return Ok((bytes > 0).then_some(known(file, bytes)?.unwrap_or(Contents::Unknown(Some(bytes)))));
    }
    let len = rustix::fs::seek(file, SeekFrom::End(0))?;
    if let Some(known) = known(file, len)? {
        return Ok(Some(known));
    }
    Ok((!is_blank(file, len)?).then_some(Contents::Unknown(None)))
}

/// How much of a regular file was written (bytes). Where the file system does not tell: its length.
fn data_bytes(file: &File) -> io::Result<u64> {
    let len = file.metadata()?.len();
    match rustix::fs::seek(file, SeekFrom::Data(0)) {
        Err(Errno::NXIO) => Ok(0),
        Ok(from) => Ok(len.saturating_sub(from)),
        Err(Errno::INVAL | Errno::OPNOTSUPP) => Ok(len),
        Err(errno) => Err(errno.into()),
    }
}

fn known(file: &File, len: u64) -> io::Result<Option<Contents>> {
    let mut bytes = [0; 16];
    for Signature { name, offset, magic } in SIGNATURES {
        let found = &mut bytes[..magic.len()];
        if read_up_to(file, found, *offset)? && found == *magic {
            return Ok(Some(Contents::Known(name)));
        }
    }
    // The copy of a partition table whose begin was wiped.
    let found = &mut bytes[..8];
    if len >= 512 && read_up_to(file, found, len - 512)? && found == b"EFI PART" {
        return Ok(Some(Contents::Known("a GPT partition table")));
    }
    Ok(None)
}

/// Whether there is so much.
fn read_up_to(file: &File, bytes: &mut [u8], offset: u64) -> io::Result<bool> {
    match file.read_exact_at(bytes, offset) {
        Ok(()) => Ok(true),
        Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => Ok(false),
        Err(error) => Err(error),
    }
}

/// Whether the edges and the samples between them are zeros.
fn is_blank(file: &File, len: u64) -> io::Result<bool> {
    let edge = EDGE_BYTES.min(len);
    let step = (len / (SAMPLES + 1)).max(SAMPLE_BYTES);
    let samples = (1..=SAMPLES).map(|number| (number * step, SAMPLE_BYTES));
    let mut buffer = vec![0; EDGE_BYTES as usize];
    for (offset, bytes) in [(0, edge), (len - edge, edge)].into_iter().chain(samples) {
        if offset >= len {
            break;
        }
        let part = &mut buffer[..bytes.min(len - offset) as usize];
        file.read_exact_at(part, offset)?;
        if part.iter().any(|&byte| byte != 0) {
            return Ok(false);
        }
    }
    Ok(true)
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::path::PathBuf;

    use super::*;

    fn file(name: &str, fill: impl FnOnce(&File)) -> (PathBuf, File) {
        let path = std::env::temp_dir().join(format!("kvfs-contents-{}-{name}", std::process::id()));
        let file = File::options().read(true).write(true).create(true).truncate(true).open(&path);
        let file = file.expect("makes a file");
        fill(&file);
        (path, file)
    }

    #[test]
    fn contents_of_each_signature_are_named() {
        for (number, signature) in SIGNATURES.iter().enumerate() {
            let (path, file) = file(&format!("signature-{number}"), |file| {
                file.set_len(1 << 20).expect("grows");
                file.write_all_at(signature.magic, signature.offset).expect("writes");
            });
            let found = find(&file).expect("reads");
            assert_eq!(found, Some(Contents::Known(signature.name)), "at {}", signature.offset);
            fs::remove_file(path).expect("removes");
        }
    }

    #[test]
    fn contents_of_files_that_were_never_written_are_none() {
        for (name, len) in [("empty", 0), ("hole", 64 << 20)] {
            let (path, file) = file(name, |file| file.set_len(len).expect("grows"));
            assert_eq!(find(&file).expect("reads"), None, "{name}");
            fs::remove_file(path).expect("removes");
        }
    }

    #[test]
    fn contents_of_short_files_and_of_written_zeros_are_kept() {
        let cases: [(&str, &[u8]); 3] = [("byte", b"x"), ("short", b"dear diary"), ("zeros", &[0; 100])];
        for (name, bytes) in cases {
            let (path, file) = file(name, |file| file.write_all_at(bytes, 0).expect("writes"));
            let found = find(&file).expect("reads");
            assert_eq!(found, Some(Contents::Unknown(Some(bytes.len() as u64))), "{name}");
            fs::remove_file(path).expect("removes");
        }
        let (path, file) = file("late", |file| {
            file.set_len(8 << 20).expect("grows");
            file.write_all_at(b"x", 5 << 20).expect("writes");
        });
        assert_eq!(find(&file).expect("reads"), Some(Contents::Unknown(Some(3 << 20))));
        fs::remove_file(path).expect("removes");
    }
}
