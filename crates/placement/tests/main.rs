//! The tests of this crate from outside, in one program: linking one costs a fraction of linking one for each file.

mod advice;
mod arrangements;
mod properties;
mod recordings;
mod shared_cards;
