//! Files that a guest hands back: `--get GUESTPATH[:FILE]`, read and checked before anything is started.

use std::{
    fs,
    path::{Path, PathBuf},
};

use anyhow::Result;

use crate::status::Usage;

/// One `--get GUESTPATH[:FILE]`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Get {
    /// The absolute path in the guest.
    pub guest_path: String,
    /// Where its contents go on this machine.
    pub file: PathBuf,
}

impl Get {
    /// Reads `GUESTPATH[:FILE]`. Without FILE, or with a folder for it, the file keeps its name. Relative files are found from
    /// `dir`.
    ///
    /// # Errors
    /// A GUESTPATH that is no absolute file name; a FILE that cannot be made, or is something else than a file. The caller says
    /// where the argument comes from.
    pub fn parse(argument: &str, dir: &Path) -> Result<Self> {
        let wrong = |text: String| Err(Usage::new(format!("{argument}: {text}")).into());
        let (guest_path, file) = argument.split_once(':').unwrap_or((argument, ""));
        let name = guest_path.rsplit('/').next().unwrap_or_default();
        if !guest_path.starts_with('/')
            || ["", ".", ".."].contains(&name)
            || guest_path.contains(|c: char| c.is_control())
        {
            return wrong("GUESTPATH must be an absolute file name".to_owned());
        }
        let (named, mut file) = (!file.is_empty(), dir.join(file));
        if !named || file.is_dir() {
            file.push(name);
        }
        let folder = file.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
        if !folder.is_dir() {
            return wrong(format!("there is no folder {}; make it first", folder.display()));
        }
        if fs::metadata(&file).is_ok_and(|metadata| !metadata.is_file()) {
            return wrong(format!("{} is not a file; name another place", file.display()));
        }
        Ok(Self { guest_path: guest_path.to_owned(), file })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn arguments() {
        let dir = tempfile::tempdir().unwrap();
        let dir = dir.path();
        fs::create_dir_all(dir.join("logs/taken")).unwrap();
        let get = |argument: &str| Get::parse(argument, dir);
        let file = |argument: &str| get(argument).unwrap().file;
        assert_eq!(get("/a/b:c").unwrap(), Get { guest_path: "/a/b".into(), file: dir.join("c") });
        assert_eq!(file("/a/b"), dir.join("b"));
        assert_eq!(Get::parse("/a/b", Path::new("")).unwrap().file, Path::new("b"));
        assert_eq!(file("/a/b:logs"), dir.join("logs/b"));
        assert_eq!(file("/a/b:logs/c:d"), dir.join("logs/c:d"));
        assert_eq!(file(&format!("/a:{}", dir.join("x").display())), dir.join("x"));
        for (bad, why) in [
            ("a:b", "absolute"),
            ("/", "absolute"),
            ("/a/..:b", "absolute"),
            ("/a\nb:c", "absolute"),
            ("/a:none/b", "there is no folder"),
            ("/taken:logs", "is not a file"),
            ("/a:/dev/null", "is not a file"),
        ] {
            let error = get(bad).unwrap_err();
            assert!(error.is::<Usage>() && error.to_string().contains(why), "{bad}: {error}");
        }
    }
}
