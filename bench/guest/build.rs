//! Makes `first_instruction` (src/first.rs) the entry point of the program that measures one processor.

fn main() {
    println!("cargo:rerun-if-changed=build.rs");
    println!("cargo:rustc-link-arg-bin=bench-guest=-Wl,-e,first_instruction");
}
