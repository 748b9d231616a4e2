//! Links the library as the real one is linked: with its SONAME, and with its own symbols bound to
//! itself, so that a preloaded hook does not catch what the library calls within.

fn main() {
    println!("cargo:rerun-if-changed=build.rs");
    println!("cargo:rustc-cdylib-link-arg=-Wl,-soname,libnvidia-ml.so.1");
    println!("cargo:rustc-cdylib-link-arg=-Wl,-Bsymbolic");
}
