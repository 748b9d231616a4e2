//! The web pages: their contents as values, the templates that print them, and the routes that serve them.
//!
//! The data flow: a [`Board`] keeps a small row for each object of a cluster, [`view`] turns rows and single objects
//! into the values of a page, `pages` prints those with templates, and [`web::router`] serves them. The data come from
//! a [`Source`], which the caller provides. This crate knows nothing about the source's origin and makes no decisions:
//! why a pod does not fit, and what would help, are inputs.

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

pub use board::{Board, NodeGpu, NodeRow, OtherRow, PodKey, PodRow, RequestedShare, State};
pub use kind::Kind;
pub use source::{
    Change, Changes, Compare, Comparison, Future, Reason, Refused, Run, Source, Way, Why,
};
