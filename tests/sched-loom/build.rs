//! Makes the scheduler take its locks and atomics from loom.

fn main() {
    println!("cargo::rustc-cfg=loom_model");
    println!("cargo::rerun-if-changed=build.rs");
}
