//! Programs of science: scripts for numpy and for FFTW, and LAMMPS. What they print are whole numbers, or so few digits that no
//! processor's way of rounding reaches them.

use std::io;

use super::run;
use crate::{Check, Work};

/// Where packages of linear algebra have their libraries. On an installed system there are links to those that were chosen.
const LIBRARIES: &str = "/usr/lib/x86_64-linux-gnu/blas:/usr/lib/x86_64-linux-gnu/lapack";

/// MPI for one process: no daemon that starts others, and no network.
const ALONE: [(&str, &str); 3] =
    [("OMPI_MCA_ess_singleton_isolated", "1"), ("OMPI_MCA_pml", "ob1"), ("OMPI_MCA_btl", "self")];

/// Arrays by numpy.
pub fn numpy(rounds: u64) -> io::Result<(Work, Check)> {
    python("arrays.py", include_str!("numpy.py"), rounds)
}

/// Transforms by FFTW, which is called from Python.
pub fn fftw(rounds: u64) -> io::Result<(Work, Check)> {
    python("transforms.py", include_str!("fftw.py"), rounds)
}

/// A script for Python with its libraries of science. `name` is none of a module that it imports. Installed packages have their
/// modules compiled; a run of no rounds compiles these before the work.
fn python(name: &'static str, script: &str, rounds: u64) -> io::Result<(Work, Check)> {
    run::prepare()?;
    run::write(name, script.as_bytes())?;
    let run = move |rounds: u64| {
        let words = format!("-I -S -X pycache_prefix={}/compiled {name} {rounds}", run::PLACE);
        let mut command = run::command("python3", &words)?;
        command.env("LD_LIBRARY_PATH", LIBRARIES);
        run::redirect("python3", &mut command, name, "output")
    };
    run(0)?;
    Ok((Box::new(move || run(rounds).map(|()| rounds)), Box::new(|_| run::sum(&["output"]))))
}

/// Molecular dynamics: energies and temperatures every ten steps, or at the end of fewer.
pub fn lammps(steps: u64) -> io::Result<(Work, Check)> {
    run::prepare()?;
    run::write("lj.in", liquid(steps).as_bytes())?;
    let work = move || {
        let mut command = run::command("lmp", "-screen none -log none -in lj.in")?;
        command.envs(ALONE);
        run::finish("lmp", run::start("lmp", &mut command)?).map(|()| steps)
    };
    Ok((Box::new(work), Box::new(|_| run::sum(&["energies"]))))
}

/// The input for this many steps. Of less than ten the checksum has what the last one comes to.
fn liquid(steps: u64) -> String {
    let text = include_str!("lj.in").replace("@STEPS@", &steps.to_string());
    text.replace("@EVERY@", &steps.clamp(1, 10).to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_checksum_sees_steps_however_few_they_are() {
        for (steps, every) in [(1, 1), (5, 5), (100, 10)] {
            let text = liquid(steps);
            let words =
                |line: &str| text.lines().any(|own| own.split_whitespace().eq(line.split_whitespace()));
            assert!(words(&format!("run {steps}")) && !text.contains('@'), "{text}");
            assert!(text.contains(&format!("all print {every} ")), "{text}");
        }
    }
}
