//! Frames: what each end sends to the other. See the [protocol](super).

use std::io::{Error, ErrorKind, Read, Result, Write};

/// Bytes in a frame at most.
pub const LONGEST: usize = 32 << 10;

/// What a frame is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Kind {
    /// The client's request.
    Request = b'?',
    /// The client's input.
    Input = b'i',
    /// What runs.
    About = b'a',
    /// Output.
    Output = b'o',
    /// Why the request cannot be met.
    Refused = b'!',
    /// The monitor was left.
    Done = b'.',
    /// The run's exit status.
    Status = b's',
}

impl Kind {
    fn from_byte(byte: u8) -> Option<Kind> {
        use Kind::{About, Done, Input, Output, Refused, Request, Status};
        [Request, Input, About, Output, Refused, Done, Status].into_iter().find(|&kind| kind as u8 == byte)
    }
}

/// Reads a frame. `None`: the other end has closed the stream between two.
///
/// # Errors
/// The stream fails, ends within a frame, or holds something else.
pub fn read(stream: &mut impl Read) -> Result<Option<(Kind, Vec<u8>)>> {
    let mut kind = [0];
    loop {
        match stream.read(&mut kind) {
            Ok(0) => return Ok(None),
            Ok(_) => break,
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    let mut length = [0; 2];
    stream.read_exact(&mut length)?;
    let length = usize::from(u16::from_le_bytes(length));
    let kind = Kind::from_byte(kind[0]).filter(|_| length <= LONGEST);
    let kind = kind.ok_or_else(|| Error::new(ErrorKind::InvalidData, "not a frame of this protocol"))?;
    let mut bytes = vec![0; length];
    stream.read_exact(&mut bytes)?;
    Ok(Some((kind, bytes)))
}

/// Writes bytes in as many frames as they need; one, if there are none.
///
/// # Errors
/// The stream fails.
pub fn write(stream: &mut impl Write, kind: Kind, bytes: &[u8]) -> Result<()> {
    let mut rest = bytes;
    loop {
        let (part, after) = rest.split_at(rest.len().min(LONGEST));
        // At most LONGEST, which has sixteen bits.
        let length = (part.len() as u16).to_le_bytes();
        stream.write_all(&[&[kind as u8], &length[..], part].concat())?;
        rest = after;
        if rest.is_empty() {
            return Ok(());
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn frames_come_as_they_went() {
        let mut stream = Vec::new();
        let long = vec![7; LONGEST + 1];
        write(&mut stream, Kind::Output, &long).unwrap();
        write(&mut stream, Kind::Done, b"").unwrap();
        let mut stream = stream.as_slice();
        assert_eq!(read(&mut stream).unwrap(), Some((Kind::Output, vec![7; LONGEST])));
        assert_eq!(read(&mut stream).unwrap(), Some((Kind::Output, vec![7])));
        assert_eq!(read(&mut stream).unwrap(), Some((Kind::Done, vec![])));
        assert_eq!(read(&mut stream).unwrap(), None);
    }

    #[test]
    fn what_is_no_frame_is_refused() {
        for bytes in [&b"x\0\0"[..], b"o\xff\xffabc", b"o\x02\0a", b"o\x02", b"GET / HTTP/1.0\r\n"] {
            assert!(read(&mut &*bytes).is_err(), "{bytes:?}");
        }
    }

    proptest! {
        #[test]
        fn any_bytes_are_read_or_refused(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
            let mut stream = bytes.as_slice();
            while let Ok(Some((_, frame))) = read(&mut stream) {
                prop_assert!(frame.len() <= bytes.len());
            }
        }
    }
}
