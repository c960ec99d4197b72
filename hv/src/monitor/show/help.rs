//! `help`.

use core::fmt::{self, Write};

use crate::monitor::command::{COMMANDS, Description};

/// The list of commands.
pub fn help(answer: &mut dyn Write) -> fmt::Result {
    for command in COMMANDS {
        let Description { name, arguments, what, .. } = command;
        let blank = if arguments.is_empty() { "" } else { " " };
        let width = 20usize.saturating_sub(name.len() + blank.len());
        writeln!(answer, "  {name}{blank}{arguments:width$} {what}")?;
    }
    answer.write_str(
        "Commands can be abbreviated to an unambiguous prefix. Addresses are hexadecimal, or a register:\n\
         rip, rax … r15, cr2, cr3; other numbers are decimal. Try: walk rip   x rsp 128   p2m fee00000\n",
    )
}

/// Explains one command.
pub fn explain(command: &Description, answer: &mut dyn Write) -> fmt::Result {
    let Description { name, arguments, what, example, .. } = command;
    writeln!(answer, "  {name} {arguments}\n  {what}\n  example: {example}")
}
