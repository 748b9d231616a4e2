//! What a review costs: decode, judge, encode.

fn main() {}
