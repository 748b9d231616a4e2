//! Who gets how much of a GPU's time, and who says so. One process of a board is its arbiter: the
//! node agent where there is one, else one of the `vgpu run`s, and when that dies another one.
//!
//! Never waits for a container, never writes a region, and never reads a clock by itself.

pub mod shares;

pub mod scale;

pub mod turns;

pub mod device;

use std::path::{Path, PathBuf};
use std::time::Duration;

use crate::gpu::Gpus;
use crate::instance::Instance;
use crate::overhead::Watch;

/// A place among those who may be the arbiter of a board.
#[derive(Debug)]
pub struct Board {
    root: PathBuf,
    own: Option<(Instance, Watch)>,
}

/// What a tick came to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Ticked {
    /// When to tick again.
    pub next: Duration,
    /// Whether this process is the arbiter.
    pub leads: bool,
}

impl Board {
    /// Joins as the runner of one container, whose directory lies at `board/uid/name`. It serves the
    /// containers of its own user, all of them where it is root's.
    ///
    /// # Errors
    /// The directory cannot be looked after; the text says why.
    pub fn join(own: &Path) -> Result<Self, String> {
        let instance = Instance::open(own).map_err(|error| error.to_string())?;
        let watch = Watch::open(&instance)?;
        let root = own.ancestors().nth(2).unwrap_or(own).to_owned();
        Ok(Self {
            root,
            own: Some((instance, watch)),
        })
    }

    /// Joins as the agent of a node, for every container below `root` that it may write.
    #[must_use]
    pub fn serve(root: &Path) -> Self {
        Self {
            root: root.to_owned(),
            own: None,
        }
    }

    /// Looks, and where this process is the arbiter grants. Call it again after [`Ticked::next`].
    /// `now_ns` is the monotonic clock. What goes wrong with one container is in nobody else's way.
    pub fn tick(&mut self, now_ns: u64, gpus: &dyn Gpus) -> Ticked {
        if let Some((instance, watch)) = &mut self.own {
            // A look that fails is followed by another one.
            watch.look(instance, gpus, now_ns).ok();
        }
        Ticked {
            next: Duration::from_millis(100),
            leads: false,
        }
    }

    /// The board.
    #[must_use]
    pub fn root(&self) -> &Path {
        &self.root
    }
}
