//! A process that builds, beside one that computes: at each moment one engine is better for the one, and the other for the other.

use std::io::{self, PipeWriter, Read, Write};

use libc::pid_t;

use crate::{
    BUILD, Work,
    memory::Chain,
    paging::{execute, own_program},
    sys::{fork, wait},
};

/// Steps through the chain for each process that is executed: about as much work.
const STEPS: u64 = 40_000;
/// Of a builder that could not build.
const FAILED: u8 = 255;

/// A builder that executes this many processes, and a chain that is followed meanwhile.
pub fn neighbours(rounds: u64) -> io::Result<Work> {
    // Before the chain is there, so that its memory is not the builder's, too.
    let mut builder = Builder::new(rounds)?;
    let mut chain = Chain::new()?;
    Ok(Box::new(move || {
        builder.start()?;
        let sum = chain.follow(rounds * STEPS);
        Ok(sum.wrapping_mul(31).wrapping_add(builder.wait()?.into()))
    }))
}

/// A child that waits for its start, executes processes, and exits with what they came to.
struct Builder {
    child: pid_t,
    start: Option<PipeWriter>,
}

impl Builder {
    fn new(rounds: u64) -> io::Result<Builder> {
        let program = own_program()?;
        let (mut reader, writer) = io::pipe()?;
        let mut writer = Some(writer);
        let child = fork(|| {
            // Its own, so that it sees the end where its parent ends without a start.
            drop(writer.take());
            let sum = reader.read_exact(&mut [0]).and_then(|()| execute(&program, BUILD, rounds));
            sum.map_or(FAILED, |sum| (sum % u64::from(FAILED)) as u8)
        })?;
        Ok(Builder { child, start: writer })
    }

    fn start(&mut self) -> io::Result<()> {
        self.start.take().map_or(Ok(()), |mut start| start.write_all(&[0]))
    }

    fn wait(&self) -> io::Result<u8> {
        match wait(self.child)? {
            FAILED => Err(io::Error::other("the builder could not build")),
            sum => Ok(sum),
        }
    }
}
