//! What the command line means.

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
