//! Link arguments of the freestanding program.

fn main() {
    println!("cargo::rerun-if-changed=link.ld");
    println!("cargo::rerun-if-changed=build.rs");
    for arg in [
        "-nostdlib",
        "-nostartfiles",
        "-static",
        "-no-pie",
        "-Wl,--build-id=none",
        "-Wl,-z,max-page-size=4096",
        "-Wl,-z,noexecstack",
        "-Wl,--gc-sections",
        "-Wl,--no-eh-frame-hdr",
    ] {
        println!("cargo::rustc-link-arg-bins={arg}");
    }
    // Relative to the workspace, where cargo has workspace members linked: cargo keeps these lines when a checkout is copied.
    println!("cargo::rustc-link-arg-bins=-Wl,-T,tests/kits/long-mode/link.ld");
}
