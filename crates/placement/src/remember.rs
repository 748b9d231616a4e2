//! What is remembered of questions that fitted nowhere, so that the same question, asked again, looks only at nodes
//! that have changed since: a pod that waits is asked for again and again, and many pods that wait ask for the same.
//! Never an answer by itself: what is remembered of a node holds for that one state of it.

use std::collections::VecDeque;

use crate::misfit::Misfit;
use crate::node::NodeState;
use crate::request::{Container, Request};

/// How many questions are remembered. Each takes about 400 bytes for a node of eight cards.
const MOST_QUESTIONS: usize = 8;

/// Why nodes did not fit, for the last questions. It belongs to one [`crate::Cluster`]: with another one, or with a
/// clone of it, its answers would be wrong.
#[derive(Debug, Default)]
pub struct Remembered {
    questions: VecDeque<Refusals>,
}

impl Remembered {
    /// What is remembered of this question, which becomes the latest. Who asks does not matter.
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

/// Why nodes did not fit one question.
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
