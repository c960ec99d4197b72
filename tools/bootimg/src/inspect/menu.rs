//! Reads the menu back from the text that [`crate::Menu`] became, or a person changed by hand.

/// A menu as found.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct MenuFound {
    /// The entries in their order.
    pub entries: Vec<Found>,
    /// What `default` is set to.
    pub default: String,
    /// What `timeout` is set to; seconds.
    pub timeout: String,
    /// The serial port that the menu uses, as GRUB's options say.
    pub serial: Option<String>,
}

/// An entry as found.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Found {
    /// Its title.
    pub title: String,
    /// What it does.
    pub commands: Vec<Command>,
}

/// A line of an entry.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Command {
    /// `multiboot2`, `module2`, `linux`, …
    pub name: String,
    /// The file's path on the image.
    pub file: String,
    /// The words after it.
    pub words: Vec<String>,
}

/// Entries at most, and commands of one; the rest is left out.
const MOST: usize = 200;

/// Reads the text. Lines that are not understood are passed over.
pub(crate) fn parse(text: &str) -> MenuFound {
    let mut menu = MenuFound::default();
    let mut inside = false;
    for line in text.lines() {
        let words = split(line);
        let Some((first, rest)) = words.split_first() else { continue };
        match (first.as_str(), inside) {
            ("menuentry", _) if menu.entries.len() < MOST => {
                menu.entries
                    .push(Found { title: rest.first().cloned().unwrap_or_default(), commands: Vec::new() });
                inside = true;
            }
            ("}", _) => inside = false,
            ("set", false) => {
                let value =
                    |name: &str| rest.first().and_then(|word| word.strip_prefix(name)?.strip_prefix('='));
                value("default").inspect(|value| menu.default = (*value).to_owned());
                value("timeout").inspect(|value| menu.timeout = (*value).to_owned());
            }
            ("if", false) if rest.first().is_some_and(|word| word == "serial") => {
                let options = rest[1..].iter().take_while(|word| word.starts_with("--"));
                let options: Vec<_> = options.map(|word| word.trim_end_matches(';')).collect();
                menu.serial = Some(options.join(" "));
            }
            (name, true) => {
                if let Some(entry) = menu.entries.last_mut().filter(|entry| entry.commands.len() < MOST) {
                    let mut rest = rest.iter();
                    let file = rest.next().map_or("", String::as_str);
                    let file = file.strip_prefix("$base").unwrap_or(file).trim_start_matches('/').to_owned();
                    entry.commands.push(Command {
                        name: name.to_owned(),
                        file,
                        words: rest.cloned().collect(),
                    });
                }
            }
            _ => {}
        }
    }
    menu
}

/// Words of a line of GRUB's shell, without their quotes; a comment ends it.
fn split(line: &str) -> Vec<String> {
    let mut words = Vec::new();
    let mut word: Option<String> = None;
    let mut quote = None;
    let mut characters = line.chars();
    while let Some(c) = characters.next() {
        match (quote, c) {
            (Some(open), _) if c == open => quote = None,
            (None, '\'' | '"') => {
                quote = Some(c);
                word.get_or_insert_default();
            }
            (None | Some('"'), '\\') => word.get_or_insert_default().extend(characters.next()),
            (None, _) if c.is_whitespace() => words.extend(word.take()),
            (None, '#') if word.is_none() => break,
            _ => word.get_or_insert_default().push(c),
        }
    }
    words.extend(word);
    words
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Boot, Entry, Menu, Module, Serial, grub};

    #[test]
    fn what_was_written_is_read() {
        let modules = vec![Module { file: "a/b".into(), cmdline: "b $x;y".into() }];
        let boot = Boot::Hypervisor {
            file: "boot/palimpsest".into(),
            cmdline: "console=com1 probe".into(),
            modules,
        };
        let native = Boot::Linux { kernel: "a/k".into(), cmdline: String::new(), initrd: Some("a/i".into()) };
        let menu = Menu {
            entries: vec![
                Entry { title: "it's # one".into(), boot },
                Entry { title: "two".into(), boot: native },
            ],
            default: 1,
            timeout_s: Some(7),
            serial: Some(Serial { unit: 2, baud: 9600 }),
        };
        let found = parse(&grub::config(&menu));
        assert_eq!((found.default.as_str(), found.timeout.as_str()), ("1", "7"));
        assert_eq!(found.serial.as_deref(), Some("--unit=2 --speed=9600"));
        assert_eq!(found.entries.iter().map(|e| e.title.as_str()).collect::<Vec<_>>(), ["it's # one", "two"]);
        let command = |name: &str, file: &str, words: &[&str]| Command {
            name: name.into(),
            file: file.into(),
            words: words.iter().map(|word| (*word).to_owned()).collect(),
        };
        assert_eq!(
            found.entries[0].commands,
            [
                command("multiboot2", "boot/palimpsest", &["console=com1", "probe"]),
                command("module2", "a/b", &["b", "$x;y"])
            ]
        );
        assert_eq!(found.entries[1].commands, [command("linux", "a/k", &[]), command("initrd", "a/i", &[])]);
    }
}
