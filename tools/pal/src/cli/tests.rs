//! What the command line means.

use clap::CommandFactory;

use super::*;

fn read(words: &[&str]) -> Result<RunArgs, String> {
    let words = ["pal", "run"].iter().chain(words);
    match Cli::try_parse_from(words).map_err(|error| error.to_string())?.command {
        Command::Run(args) => Ok(*args),
        _ => Err("another subcommand".into()),
    }
}

#[test]
fn the_last_of_two_counts() {
    let args = read(&[
        "--mem", "64", "--icount", "--mode", "shadow", "--exec", "a", "--mem", "96", "--icount", "--mode",
        "nested", "--exec", "b", "--append", "x", "--append", "y",
    ]);
    let args = args.unwrap();
    assert_eq!((args.mem, args.icount, args.mode, args.exec.as_deref()), (96, true, Mode::Nested, Some("b")));
    assert_eq!(args.append, ["x", "y"]);
    assert!(read(&["--config", "lab.toml", "--mem", "64"]).is_err());
}

/// The help text of each subcommand, and of theirs.
fn helps(command: &clap::Command, into: &mut Vec<String>) {
    into.extend(command.get_after_help().map(ToString::to_string));
    command.get_subcommands().for_each(|command| helps(command, into));
}

/// The words of each example behind `cargo pal`, without what is the shell's.
fn examples() -> Vec<Vec<String>> {
    let mut texts = Vec::new();
    helps(&Cli::command(), &mut texts);
    let lines = texts.iter().flat_map(|text| text.lines()).filter(|line| line.starts_with("  "));
    let commands = lines.filter_map(|line| line.split_once("cargo pal ").map(|(_, words)| (line, words)));
    commands
        .filter(|(line, _)| !line.contains('`') || line.starts_with("  cargo pal "))
        .map(|(line, words)| {
            // A description follows after two spaces or more.
            let command = words.split("  ").next().unwrap_or(words);
            let words = shlex::split(command).unwrap_or_else(|| panic!("quotes: {line}"));
            words.into_iter().take_while(|word| !["<", ">", "&", "|"].contains(&word.as_str())).collect()
        })
        .collect()
}

#[test]
fn examples_are_command_lines() {
    let examples = examples();
    assert!(examples.len() > 70, "{}", examples.len());
    for words in examples {
        let line = ["pal"].into_iter().chain(words.iter().map(String::as_str));
        match Cli::try_parse_from(line) {
            Ok(_) => {}
            Err(error) if error.kind() == clap::error::ErrorKind::DisplayHelp => {}
            Err(error) => panic!("{words:?}: {error}"),
        }
    }
}

#[test]
fn each_option_of_run_has_an_example() {
    let examples = examples();
    let command = Cli::command();
    let run = command.find_subcommand("run").unwrap();
    for option in run.get_arguments().filter(|option| !option.is_hide_set()).filter_map(clap::Arg::get_long) {
        let long = format!("--{option}");
        let has = |word: &String| word == &long || word.starts_with(&format!("{long}="));
        assert!(examples.iter().any(|words| words[0] == "run" && words.iter().any(has)), "{long}");
    }
}

#[test]
fn defaults_of_agile_paging_are_those_of_the_hypervisor() {
    let run = Cli::command().find_subcommand("run").unwrap().clone();
    let mode = run.get_arguments().find(|option| option.get_id() == "mode").unwrap();
    let help = mode.get_help().unwrap().to_string();
    let guide = include_str!("../../../../docs/guide.md");
    // The hypervisor takes what is not given from these modes.
    let Ok(Mode::Agile(agile)) = "agile".parse() else { panic!("`agile` is a mode") };
    let Ok(Mode::Commodity(commodity)) = "agile,machine=commodity".parse() else { panic!("so is this") };
    for (name, values) in [("`agile[", &agile.values()[..]), ("`agile,machine", &commodity.values()[..])] {
        let words: Vec<_> = values.iter().map(|(key, value)| format!("{key}={value}")).collect();
        assert!(help.contains(&format!("(by default {})", words.join(","))), "{words:?}: {help}");
        let item = guide.split("\n- ").find(|item| item.starts_with(name)).unwrap();
        let item = item.split_whitespace().collect::<Vec<_>>().join(" ");
        for (key, value) in values {
            assert!(item.contains(&format!("`{key}` ({value})")), "{key}: {item}");
        }
    }
}

#[test]
fn each_subcommand_has_examples() {
    let examples = examples();
    for command in Cli::command().get_subcommands() {
        let name = command.get_name();
        assert!(examples.iter().any(|words| words.first().is_some_and(|word| word == name)), "{name}");
    }
    // Of what only a terminal of 80 columns shows whole.
    for line in help::RUN.lines().filter(|line| line.starts_with("  ")) {
        assert!(line.chars().count() <= 80, "{line}");
    }
}
