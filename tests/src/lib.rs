//! Whole programs under the library: linkage styles, kills, races, real clients. The tests are in preload/, nvml/,
//! clients/, graph/ and bench/; this library is empty because only tests need their dependencies.
