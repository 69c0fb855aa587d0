//! Taking requests apart.
//!
//! Invariant: no input makes this panic; what is too short or not terminated is [`Malformed`].

use zerocopy::{FromBytes, Immutable, KnownLayout};

use crate::abi::{ExtHeader, InHeader, SuppGroups, flags};

/// The request isn't what its opcode says.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("malformed request: {0}")]
pub(crate) struct Malformed(pub(crate) &'static str);

/// The not yet consumed part of a request.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Decoder<'a> {
    rest: &'a [u8],
}

impl<'a> Decoder<'a> {
    pub(crate) fn new(bytes: &'a [u8]) -> Self {
        Self { rest: bytes }
    }

    /// The next struct.
    pub(crate) fn take<T: FromBytes + Immutable + KnownLayout>(&mut self) -> Result<T, Malformed> {
        let (value, rest) = T::read_from_prefix(self.rest).map_err(|_| Malformed("arguments are cut off"))?;
        self.rest = rest;
        Ok(value)
    }

    /// The next string, up to its NUL; not empty.
    pub(crate) fn name(&mut self) -> Result<&'a [u8], Malformed> {
        let name = self.string()?;
        if name.is_empty() {
            return Err(Malformed("a name is empty"));
        }
        Ok(name)
    }

    /// The next string, up to its NUL.
    pub(crate) fn string(&mut self) -> Result<&'a [u8], Malformed> {
        let end = self.rest.iter().position(|&byte| byte == 0).ok_or(Malformed("a string has no end"))?;
        let (string, rest) = self.rest.split_at(end);
        self.rest = &rest[1..];
        Ok(string)
    }

    /// The next `len` bytes.
    pub(crate) fn bytes(&mut self, len: usize) -> Result<&'a [u8], Malformed> {
        let (bytes, rest) = self.rest.split_at_checked(len).ok_or(Malformed("data is cut off"))?;
        self.rest = rest;
        Ok(bytes)
    }

    /// Whatever is left.
    pub(crate) fn rest(&self) -> &'a [u8] {
        self.rest
    }
}

/// Header, arguments and supplementary groups of a request.
pub(crate) fn split(message: &[u8]) -> Result<(InHeader, &[u8], Vec<u32>), Malformed> {
    let (header, body) =
        InHeader::read_from_prefix(message).map_err(|_| Malformed("shorter than its header"))?;
    if header.len as usize != message.len() {
        return Err(Malformed("length differs from what was read"));
    }
    let ext_bytes = usize::from(header.total_extlen) * 8;
    let args_bytes = body.len().checked_sub(ext_bytes).ok_or(Malformed("extensions are cut off"))?;
    let (args, extensions) = body.split_at(args_bytes);
    let groups = if extensions.is_empty() { Vec::new() } else { groups(extensions)? };
    Ok((header, args, groups))
}

fn groups(mut extensions: &[u8]) -> Result<Vec<u32>, Malformed> {
    while !extensions.is_empty() {
        let (head, _) =
            ExtHeader::read_from_prefix(extensions).map_err(|_| Malformed("an extension is cut off"))?;
        let bytes = (head.size as usize).next_multiple_of(8);
        if bytes < size_of::<ExtHeader>() {
            return Err(Malformed("an extension has no length"));
        }
        let (extension, rest) =
            extensions.split_at_checked(bytes).ok_or(Malformed("an extension is cut off"))?;
        if head.ext_type == flags::EXT_GROUPS {
            let mut decoder = Decoder::new(&extension[size_of::<ExtHeader>()..]);
            let count = decoder.take::<SuppGroups>()?.nr_groups as usize;
            let ids = decoder.bytes(count.checked_mul(4).ok_or(Malformed("too many groups"))?)?;
            return Ok(ids.as_chunks::<4>().0.iter().map(|id| u32::from_ne_bytes(*id)).collect());
        }
        extensions = rest;
    }
    Ok(Vec::new())
}
