//! Link arguments of the freestanding binary; the library needs none.

fn main() {
    println!("cargo::rerun-if-changed=linker.ld");
    println!("cargo::rerun-if-changed=build.rs");
    for arg in [
        "-nostdlib",
        "-nostartfiles",
        "-static",
        "-no-pie",
        "-Wl,--build-id=sha1",
        "-Wl,-z,max-page-size=4096",
        "-Wl,-z,noexecstack",
        "-Wl,--gc-sections",
        "-Wl,--no-eh-frame-hdr",
    ] {
        println!("cargo::rustc-link-arg-bin=palimpsest={arg}");
    }
    // Relative to the workspace, where cargo has workspace members linked: cargo keeps these lines when a checkout is copied.
    println!("cargo::rustc-link-arg-bin=palimpsest=-Wl,-T,hv/linker.ld");
}
