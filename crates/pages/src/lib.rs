//! The web pages: what they show as values, how it is printed, and the routes that serve them.
//!
//! The way through it: a [`Board`] keeps a small row for each object of a cluster, [`view`] turns rows and single
//! objects into the values of a page, `pages` prints those with templates, [`web::router`] serves them. The data come
//! from a [`Source`], which is handed in. This crate never knows what is behind it, and never decides: why a pod does
//! not fit and what would help is an input.

#![forbid(unsafe_code)]

pub mod web;

mod pages;

pub mod view;

pub mod assigner;
pub mod gpus;

mod board;
mod source;

mod serve;

mod frame;

mod assets;
mod kind;
mod text;
mod yaml;

pub use board::{Board, Card, NodeRow, OtherRow, PodKey, PodRow, Share, State};
pub use kind::Kind;
pub use source::{
    Change, Changes, Compare, Comparison, Future, Reason, Refused, Run, Source, Way, Why,
};
