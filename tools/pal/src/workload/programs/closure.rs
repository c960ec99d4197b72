//! Which packages a program takes: the one that was named, and what its dependencies in apt's lists lead to. Libraries are
//! followed, and packages whose names begin as the workload says. All else is for maintaining a system (dpkg, adduser, scripts of
//! services), which a guest of one program is not.

use std::collections::BTreeSet;

use anyhow::{Context, Result, bail};
use workloads::Programs;

/// Packages of one program at most; a few dozen are the most that is known.
const MOST: usize = 200;

/// A package, as apt's lists describe it.
#[derive(Debug, Default, PartialEq)]
struct Package {
    name: String,
    section: String,
    /// What it depends on: one of each group.
    depends: Vec<Vec<String>>,
}

/// The names of all packages, in the order of the alphabet. `show` gives the descriptions of packages, in the form of
/// `apt-cache show`, and leaves out those that it does not know.
///
/// # Errors
/// Those of `show`; the first package is unknown; there are too many.
pub fn closure(programs: &Programs, mut show: impl FnMut(&[&str]) -> Result<String>) -> Result<Vec<String>> {
    let is_wanted = |package: &Package| {
        // Ubuntu's sections are `universe/libs`, and the like.
        package.section.rsplit('/').next() == Some("libs")
            || programs.with.iter().any(|beginning| package.name.starts_with(beginning))
    };
    let first = packages(&show(&[programs.package])?);
    let first = first.into_iter().find(|package| package.name == programs.package);
    let mut level = vec![first.with_context(|| format!("apt does not know {}", programs.package))?];
    let mut names: BTreeSet<String> = [programs.package.to_owned()].into();
    while !level.is_empty() {
        let groups: Vec<_> = level.iter().flat_map(|package| &package.depends).collect();
        let asked: BTreeSet<&str> =
            groups.iter().flat_map(|group| group.iter().map(String::as_str)).collect();
        if asked.is_empty() {
            break;
        }
        let known = packages(&show(&asked.into_iter().collect::<Vec<_>>())?);
        // Of alternatives the first one counts that there is.
        let mut found = BTreeSet::new();
        for group in groups {
            let package = group.iter().find_map(|name| known.iter().find(|package| package.name == *name));
            found.extend(package.filter(|package| is_wanted(package)).map(|package| package.name.clone()));
        }
        found.retain(|name| names.insert(name.clone()));
        if names.len() > MOST {
            bail!("{} leads to more than {MOST} packages", programs.package);
        }
        level = known.into_iter().filter(|package| found.remove(&package.name)).collect();
    }
    Ok(names.into_iter().collect())
}

/// Reads descriptions: fields `Name: value` in blocks, with empty lines between them.
fn packages(text: &str) -> Vec<Package> {
    let mut packages = vec![Package::default()];
    for line in text.lines() {
        let Some(package) = packages.last_mut() else { break };
        match line.split_once(": ") {
            _ if line.is_empty() => packages.push(Package::default()),
            Some(("Package", name)) => package.name = name.trim().to_owned(),
            Some(("Section", section)) => package.section = section.trim().to_owned(),
            Some(("Depends" | "Pre-Depends", groups)) => package.depends.extend(groups.split(',').map(group)),
            _ => {}
        }
    }
    packages.retain(|package| !package.name.is_empty());
    packages
}

/// The names in `a (>= 1) | b:any`.
fn group(text: &str) -> Vec<String> {
    let names =
        text.split('|').filter_map(|one| one.split([' ', '(', '[', '<', ':']).find(|part| !part.is_empty()));
    // What Debian could not call a package is nothing to ask apt for.
    names.filter(|name| crate::root::is_name(name)).map(str::to_owned).collect()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const LISTS: &str = "Package: cpp\nSection: devel\nDepends: cpp-12 (>= 12.2.0-1~)\n\n\
        Package: cpp-12\nSection: devel\nPre-Depends: dpkg\nDepends: gcc-12-base (= 12.2.0), libc6 (>= 2.36) | libc0, libnone, none | zlib1g:any\n\n\
        Package: dpkg\nSection: admin\nDepends: libbz2-1.0\n\n\
        Package: gcc-12-base\nSection: libs\n\n\
        Package: libc6\nSection: libs\nDepends: libgcc-s1\n\n\
        Package: libc0\nSection: libs\n\n\
        Package: libgcc-s1\nSection: universe/libs\nDepends: libc6 (>= 2.35), gcc-12-base\nDescription: low\n Depends: not-this\n\n\
        Package: zlib1g\nSection: libs\nDepends: libc6\n\n\
        Package: libbz2-1.0\nSection: libs\n";

    fn show(names: &[&str]) -> Result<String> {
        let known = LISTS.split("\n\n");
        let is_asked =
            |block: &&str| names.iter().any(|name| block.starts_with(&format!("Package: {name}\n")));
        Ok(known.filter(is_asked).map(|block| format!("{}\n\n", block.trim_end())).collect())
    }

    fn of(package: &'static str, with: &'static [&'static str]) -> Result<Vec<String>> {
        closure(&Programs { package, with, files: &[] }, show)
    }

    #[test]
    fn libraries_and_what_is_named_are_followed() {
        // Not dpkg, nor what only it depends on; nor the second of two alternatives; circles end.
        assert_eq!(
            of("cpp", &["cpp-"]).unwrap(),
            ["cpp", "cpp-12", "gcc-12-base", "libc6", "libgcc-s1", "zlib1g"]
        );
        assert_eq!(of("cpp", &[]).unwrap(), ["cpp"]);
        assert_eq!(of("gcc-12-base", &[]).unwrap(), ["gcc-12-base"]);
        assert!(of("gone", &[]).unwrap_err().to_string().contains("gone"));
    }

    #[test]
    fn a_chain_without_end_is_refused() {
        let endless = |names: &[&str]| {
            let one = |name: &&str| {
                let number: u32 = name.trim_start_matches("lib").parse().unwrap_or(0);
                format!("Package: {name}\nSection: libs\nDepends: lib{}\n\n", number + 1)
            };
            Ok(names.iter().map(one).collect())
        };
        let error = closure(&Programs { package: "lib0", with: &[], files: &[] }, endless).unwrap_err();
        assert!(error.to_string().contains("more than 200"), "{error}");
    }

    proptest! {
        #[test]
        fn any_text_is_read(text in "(Package: |Depends: |[a|,:( \n]){0,40}") {
            let _ = packages(&text);
            let _ = closure(&Programs { package: "a", with: &[""], files: &[] }, |_| Ok(text.clone()));
        }
    }
}
