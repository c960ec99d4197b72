//! `pal`: everything a person does with Palimpsest.

fn main() {}
