//! libvgpu.so: gives a program its share of a GPU and no more. It is preloaded into programs that know
//! nothing of it, stands between them and the CUDA driver, and reserves before the driver gives.
//!
//! The way of a call: an exported symbol of `hooks` runs the rule that stands before, calls the
//! genuine function that `driver` found, and runs the rule that stands after. Programs come to the
//! hooks by the linker, or by `dlsym` and `cuGetProcAddress` (`linker`, `dispatch`).
//!
//! A guest: it starts no thread, installs no signal handler, changes no environment variable, prints
//! nothing, keeps `errno`, has no constructor, waits for no peer longer than 100 ms (a
//! context of unknown size: 3 s, decision 0011), and keeps nothing
//! of its own alive across a call of the driver.

mod addresses;
mod dispatch;
mod hooks;
mod linker;

mod arrays;
mod checkpoint;
mod compute;
mod contexts;
mod external;
mod first_use;
mod graphs;
mod ipc;
mod leaving;
mod libraries;
mod measure;
mod memory;
mod modules;
mod mps;
mod nvml;
mod offers;
mod pools;
mod report;
mod sparse;
mod virtual_memory;

mod books;
mod cards;
mod container;
mod growing;
mod ledger;
mod location;
mod map;
mod objects;
mod patience;
mod places;
mod room;

mod arch;
mod border;
mod clock;
mod driver;
mod elf;
mod image;
mod query;

mod guest;
mod lock;
mod log;
mod settings;
