//! libvgpu.so: gives a program its share of a GPU and no more. It is preloaded into programs that know
//! nothing of it, stands between them and the CUDA driver, and reserves before the driver gives.
//!
//! The path of a call: an exported symbol of `hooks` runs the rule before the call, calls the
//! genuine function that `driver::genuine` found, and runs the rule after it. Programs reach the
//! hooks through the linker, or through `dlsym` and `cuGetProcAddress` (`hooks::linker`, `rules::dispatch`).
//!
//! A guest: it starts no thread, installs no signal handler, changes no environment variable, prints
//! nothing, keeps `errno`, has no constructor, waits for no other process longer than 100 ms (a context of unknown
//! size: 3 s, decision 0011), and keeps nothing of its own alive across a call of the driver.

mod base;
mod driver;
mod figures;
mod guest;
mod holdings;
mod hooks;
mod rules;
mod state;
