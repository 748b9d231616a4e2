//! Whole programs under the library: linkage styles, kills, races, real clients. The tests stand in
//! preload/, nvml/, clients/, graph/ and bench/; this library is empty because only tests need what they need.
