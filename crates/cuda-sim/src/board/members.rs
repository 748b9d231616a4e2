//! The driver's side of a board: processes that join it, and the memory that they take, give back and share.

use super::{
    Board, BoardState, Hold, Kind, MAX_HOLDERS, MAX_PROCESSES, MAX_SHARED, Member, MemoryRefused,
    ProcessMemory, SharedAllocation, SharedId, Use, files, instance_of,
};
use crate::config::MAX_GPUS;
use crate::groups::Groups;
use crate::process::Identity;

impl Board {
    /// Gives this process its place. Memory that an earlier program of the same process held
    /// (before an exec) is given back.
    ///
    /// # Errors
    /// When 1,024 living processes are there.
    pub fn join(&self) -> Result<Member, MemoryRefused> {
        self.join_groups(Groups::own())
    }

    /// The same for a process of these control groups.
    pub(super) fn join_groups(&self, groups: Groups) -> Result<Member, MemoryRefused> {
        let identity = Identity::own();
        let mut state = self.lock();
        self.look(&mut state);
        for index in 0..state.process_end() {
            if state.processes[index].is_same_process(&identity) {
                state.release(index);
            }
        }
        let index = (0..MAX_PROCESSES)
            .find(|&index| state.processes[index].generation == 0)
            .ok_or(MemoryRefused::NoRoom)?;
        let generation = state.next_generation;
        state.next_generation += 1;
        state.process_end = state.process_end.max(index as u64 + 1);
        state.processes[index] = ProcessMemory {
            identity,
            generation,
            died_ns: 0,
            instance: 0,
            groups,
            uses: [Use::NONE; MAX_GPUS],
            stage: 0,
            away: [Use::NONE; MAX_GPUS],
        };
        drop(state);
        files::stand(&self.path, generation);
        Ok(Member { index, generation })
    }

    /// Frees the memory that dead processes and closed descriptors have kept.
    pub(super) fn look(&self, state: &mut BoardState) {
        state.reap(self.area().release_delay_ns, &self.path);
        state.collect(&self.path);
    }

    /// This process works on a MIG device of the GPUs that it uses, and has no more room than that.
    pub fn settle(&self, member: Member, instance: u32) {
        let mut state = self.lock();
        if state.own(member).is_some() {
            state.processes[member.index].instance = u64::from(instance) + 1;
        }
    }

    /// Gives the place and all memory back.
    pub fn leave(&self, member: Member) {
        let mut state = self.lock();
        if state.own(member).is_some() {
            files::leave(&self.path, member.generation);
            state.release(member.index);
        }
    }

    /// Takes memory.
    ///
    /// # Errors
    /// When the GPU, or a limit of the process's control groups, has no room for it; dead processes' memory counts as
    /// free.
    pub fn take(
        &self,
        member: Member,
        gpu: usize,
        bytes: u64,
        kind: Kind,
    ) -> Result<(), MemoryRefused> {
        let mut state = self.lock();
        if gpu >= self.gpus() || state.own(member).is_none() {
            return Err(MemoryRefused::Unknown);
        }
        let instance = instance_of(&state.processes[member.index]);
        // Room of the part of the GPU that the process works on; `None` if that is the whole GPU.
        let part = match instance {
            None => None,
            Some(index) => {
                let total = state.devices[gpu].total;
                let part = state.cuts[gpu].instance(total, index);
                Some(part.ok_or(MemoryRefused::Unknown)?.bytes)
            }
        };
        let nests = self.is_contrary();
        let has_room = |state: &BoardState| {
            let fits = |total| state.part_used(gpu, instance).saturating_add(bytes) <= total;
            let groups = || state.groups_have_room(gpu, member.index, bytes, nests);
            let of_system = kind == Kind::Managed;
            state.has_room(gpu, bytes) && part.is_none_or(fits) && (of_system || groups())
        };
        if !has_room(&state) {
            self.look(&mut state);
            if !has_room(&state) {
                return Err(MemoryRefused::NoMemory);
            }
        }
        state.devices[gpu].used += bytes;
        let uses = &mut state.processes[member.index].uses[gpu];
        match kind {
            Kind::Alloc => uses.alloc += bytes,
            Kind::Managed => {
                uses.alloc += bytes;
                uses.managed += bytes;
            }
            Kind::Overhead => uses.overhead += bytes,
        }
        Ok(())
    }

    /// Gives memory back; never more than the process has.
    pub fn give(&self, member: Member, gpu: usize, bytes: u64, kind: Kind) {
        let mut state = self.lock();
        if gpu >= MAX_GPUS || state.own(member).is_none() {
            return;
        }
        let uses = &mut state.processes[member.index].uses[gpu];
        let word = match kind {
            Kind::Alloc => &mut uses.alloc,
            Kind::Managed => {
                uses.managed = uses.managed.saturating_sub(bytes);
                &mut uses.alloc
            }
            Kind::Overhead => &mut uses.overhead,
        };
        let bytes = bytes.min(*word);
        *word -= bytes;
        state.devices[gpu].used = state.devices[gpu].used.saturating_sub(bytes);
    }

    /// Makes memory that this process has taken (as [`Kind::Alloc`]) one that others can hold too;
    /// this process is its first holder.
    ///
    /// # Errors
    /// When the process has not that much, or the table is full.
    pub fn share(&self, member: Member, gpu: usize, bytes: u64) -> Result<SharedId, MemoryRefused> {
        let mut state = self.lock();
        state.own(member).ok_or(MemoryRefused::Unknown)?;
        let slot = (0..MAX_SHARED)
            .find(|&slot| state.shared[slot].id == 0)
            .ok_or(MemoryRefused::NoRoom)?;
        let uses = state.processes[member.index]
            .uses
            .get_mut(gpu)
            .ok_or(MemoryRefused::Unknown)?;
        uses.alloc = uses
            .alloc
            .checked_sub(bytes)
            .ok_or(MemoryRefused::Unknown)?;
        uses.managed = uses.managed.min(uses.alloc);
        let id = state.next_shared;
        state.next_shared += 1;
        state.shared_end = state.shared_end.max(slot as u64 + 1);
        let mut holders = [Hold {
            process: 0,
            count: 0,
            generation: 0,
        }; MAX_HOLDERS];
        holders[0] = Hold {
            process: member.index as u32 + 1,
            count: 1,
            generation: member.generation,
        };
        state.shared[slot] = SharedAllocation {
            id,
            device: gpu as u64,
            bytes,
            exported: 0,
            holders,
        };
        Ok(SharedId(id))
    }

    /// Holds a shared allocation once more.
    ///
    /// # Errors
    /// When it is gone, or has as many holders as fit.
    pub fn hold(&self, member: Member, id: SharedId) -> Result<(), MemoryRefused> {
        let mut state = self.lock();
        state.own(member).ok_or(MemoryRefused::Unknown)?;
        let own = member.index as u32 + 1;
        let shared = state.shared_mut(id).ok_or(MemoryRefused::Unknown)?;
        let is_own =
            |holder: &Hold| holder.process == own && holder.generation == member.generation;
        if let Some(holder) = shared.holders.iter_mut().find(|holder| is_own(holder)) {
            holder.count += 1;
            return Ok(());
        }
        let holder = shared
            .holders
            .iter_mut()
            .find(|holder| holder.process == 0)
            .ok_or(MemoryRefused::NoRoom)?;
        // The place may be one of a process that died with holds of its own.
        *holder = Hold {
            process: own,
            count: 1,
            generation: member.generation,
        };
        Ok(())
    }

    /// Holds it once less; with the last holder it is gone. Answers whether it is.
    pub fn let_go(&self, member: Member, id: SharedId) -> bool {
        let mut state = self.lock();
        let own = member.index as u32 + 1;
        let Some(shared) = state.shared_mut(id) else {
            return true;
        };
        if let Some(holder) = shared
            .holders
            .iter_mut()
            .find(|holder| holder.process == own && holder.generation == member.generation)
        {
            holder.count = holder.count.saturating_sub(1);
            if holder.count == 0 {
                holder.process = 0;
            }
        }
        state.drop_if_unheld(id)
    }

    /// Device and size of a shared allocation, while a process holds it.
    #[must_use]
    pub fn shared(&self, id: SharedId) -> Option<(usize, u64)> {
        let mut state = self.lock();
        state
            .shared_mut(id)
            .map(|shared| (shared.device as usize, shared.bytes))
    }
}
