//! Remembers requests that fitted nowhere, so that a repeated request checks only nodes that have changed since. A
//! waiting pod is tried again and again, and many waiting pods have the same request. An entry is valid only for the one
//! state of a node for which it was made.

use std::collections::VecDeque;

use crate::misfit::Misfit;
use crate::node::NodeState;
use crate::request::{Container, Request};

/// The number of requests that are remembered. Each takes about 400 bytes for a node of eight devices.
const MOST_QUESTIONS: usize = 8;

/// Why nodes did not fit, for the last requests. It belongs to one [`crate::Cluster`]: with another one, or with a
/// clone of it, its answers would be wrong.
#[derive(Debug, Default)]
pub struct Remembered {
    questions: VecDeque<Refusals>,
}

impl Remembered {
    /// The entry of this request, which becomes the latest. The pod's identity is ignored.
    pub(crate) fn of(&mut self, request: &Request) -> Option<&mut Refusals> {
        let at = self
            .questions
            .iter()
            .position(|question| question.containers == request.containers);
        let question = match at.and_then(|at| self.questions.remove(at)) {
            Some(question) => question,
            None => {
                self.questions.truncate(MOST_QUESTIONS - 1);
                Refusals {
                    containers: request.containers.clone(),
                    nodes: Vec::new(),
                }
            }
        };
        self.questions.push_front(question);
        self.questions.front_mut()
    }
}

/// Why nodes did not fit one request.
#[derive(Debug)]
pub(crate) struct Refusals {
    containers: Vec<Container>,
    /// By the node's place in the cluster: the version that did not fit, and why.
    nodes: Vec<Option<(u64, Misfit)>>,
}

impl Refusals {
    /// Why the node did not fit, if it is as it was then.
    pub(crate) fn get(&self, node: &NodeState) -> Option<&Misfit> {
        let (version, misfit) = self.nodes.get(node.place)?.as_ref()?;
        (*version == node.version && node.version != 0).then_some(misfit)
    }

    /// Notes that the node did not fit as it is, and why.
    pub(crate) fn note(&mut self, node: &NodeState, misfit: &Misfit) {
        if self.nodes.len() <= node.place {
            self.nodes.resize_with(node.place + 1, || None);
        }
        if let Some(slot) = self.nodes.get_mut(node.place) {
            *slot = Some((node.version, misfit.clone()));
        }
    }
}
