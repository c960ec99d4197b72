//! The lab machine: its descriptions, and how a run gets it. docs/lab.md is the guide.

pub mod args;
pub mod attach;
mod speed;
mod summary;

use std::{fs, path::Path};

use anyhow::Result;
use labsim::machine::{self, Machine};

use crate::{project::Project, status::Usage, ui::Ui};
use args::{LabArgs, LabCommand};

/// `pal lab`.
///
/// # Errors
/// [`Usage`] for unknown names and wrong descriptions; others where a measurement fails.
pub fn run(args: &LabArgs, project: &Project, ui: &Ui) -> Result<u8> {
    match &args.command {
        LabCommand::List => {
            for (name, text) in machine::PRESETS {
                println!("{name:<20} {}", read(text, name)?.description);
            }
        }
        LabCommand::Show { machine, toml } => {
            let (text, machine) = find(machine)?;
            print!("{}", if *toml { text } else { machine::show(&machine) });
        }
        LabCommand::Check { file } => {
            let machine = read(&text_of(file)?, &file.to_string_lossy())?;
            println!("{}: {}, {}", file.display(), machine.name.get_ref(), machine.description);
        }
        LabCommand::Speed(args) => return speed::run(args, project, ui),
    }
    Ok(0)
}

/// The machine of this name, or in this file: its text, and what it says.
///
/// # Errors
/// [`Usage`]: there is none, or it is wrong.
pub fn find(name: &str) -> Result<(String, Machine)> {
    if let Some(text) = machine::preset(name) {
        return Ok((text.to_owned(), read(text, name)?));
    }
    let path = Path::new(name);
    if !path.exists() && !name.contains(['/', '.']) {
        let text =
            format!("{name}: no such machine and no such file; `cargo pal lab list` lists the machines");
        return Err(Usage::new(text).into());
    }
    let text = text_of(path)?;
    let machine = read(&text, name)?;
    Ok((text, machine))
}

fn text_of(path: &Path) -> Result<String> {
    fs::read_to_string(path).map_err(|error| Usage::new(format!("{}: {error}", path.display())).into())
}

fn read(text: &str, name: &str) -> Result<Machine> {
    machine::read(text, name).map_err(|error| Usage::new(error.to_string()).into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn machines_by_name_and_by_file() {
        assert_eq!(find("zen3").unwrap().1.name.get_ref(), "zen3");
        let error = |name: &str| find(name).err().unwrap().to_string();
        assert!(error("zen33").contains("`cargo pal lab list`"));
        assert!(error("./nowhere.toml").starts_with("./nowhere.toml: "));
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("m.toml");
        fs::write(&file, find("zen3").unwrap().0.replace("begins_at", "begin_at")).unwrap();
        let text = error(&file.to_string_lossy());
        assert!(text.contains("m.toml:") && text.contains("begin_at"), "{text}");
    }
}
