//! How the shared object is linked: our own calls bind to our own functions (-Bsymbolic), and it is
//! never unloaded, since its functions stay in tables of others and in the handlers of fork.

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    for argument in [
        "-Wl,-Bsymbolic",
        "-Wl,-z,nodelete",
        "-Wl,-soname,libvgpu.so",
    ] {
        println!("cargo::rustc-cdylib-link-arg={argument}");
    }
}
