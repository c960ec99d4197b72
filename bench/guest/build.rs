//! Makes `first_instruction` (src/first.rs) the program's entry point.

fn main() {
    println!("cargo:rerun-if-changed=build.rs");
    println!("cargo:rustc-link-arg-bins=-Wl,-e,first_instruction");
}
