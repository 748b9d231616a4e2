//! Whole programs under the library: linkage styles, kills, races, real clients.
