//! Puts the two events around a launch that is measured.

use core::sync::atomic::Ordering;

use super::stretch::{gap_ns, is_alone, slack_ns};
use super::{Begun, MARKS, Mark, Spans};
use crate::base::clock;
use crate::driver::query;
use crate::state::launches::costs::Work;

impl Spans {
    /// Puts an event before the launch that comes. `None`: it cannot be measured now.
    pub(crate) fn begin(&self, at: usize) -> Option<Begun> {
        let stream = self.streams.get(at)?;
        let marks = stream.marks.hold_briefly()?;
        if marks.count >= MARKS {
            return None;
        }
        // Relaxed: the stream's order is the caller's own.
        let is_broken = stream.is_broken.swap(0, Ordering::Relaxed) != 0;
        let is_chained = !is_broken
            && marks
                .newest()
                .is_some_and(|mark| query::event_is_done(mark.end) == Some(false));
        let start = self.event(marks.context)?;
        let before_ns = clock::now_ns();
        if !query::record_event(start, marks.handle) {
            self.give_back(marks.context, start);
            return None;
        }
        let at_ns = clock::now_ns();
        Some(Begun {
            stream: at,
            // Relaxed: see `stream`.
            key: stream.key.load(Ordering::Relaxed),
            start,
            at_ns,
            early_ns: at_ns.saturating_sub(before_ns),
            submitted_ns: marks.submitted_ns,
            is_chained,
        })
    }

    /// Records an event behind the launch that `begun` was made for. False: it is not measured.
    pub(crate) fn end(&self, begun: &Begun, work: Work, charged_ns: u64, is_unknown: bool) -> bool {
        let now_ns = clock::now_ns();
        let Some(stream) = self.streams.get(begun.stream) else {
            return false;
        };
        let Some(mut marks) = stream.marks.hold_briefly() else {
            return false;
        };
        let marks = &mut *marks;
        // Relaxed: see `stream`.
        if stream.key.load(Ordering::Relaxed) != begun.key {
            // Its context was destroyed, and the library's event with it.
            return false;
        }
        marks.submitted_ns += charged_ns;
        marks.at_ns = now_ns;
        self.set_busy(begun.stream, true);
        let end = self.event(marks.context).filter(|_| marks.count < MARKS);
        let Some(end) = end else {
            self.give_back(marks.context, begun.start);
            return false;
        };
        if !query::record_event(end, marks.handle) {
            self.give_back(marks.context, begun.start);
            self.give_back(marks.context, end);
            return false;
        }
        let recorded_ns = clock::now_ns();
        let had_started = query::event_is_done(begun.start) != Some(false);
        let has_ended = had_started && query::event_is_done(end) != Some(false);
        let late_ns = match has_ended {
            true => recorded_ns.saturating_sub(now_ns),
            false => 0,
        };
        let mark = Mark {
            start: begun.start,
            end,
            gap_ns: gap_ns(had_started, query::launches_block(), begun.at_ns, now_ns),
            slack_ns: slack_ns(
                had_started,
                query::launches_block(),
                begun.early_ns,
                late_ns,
            ),
            submitted_ns: marks.submitted_ns,
            charged_ns,
            begun_ns: begun.at_ns,
            work,
            is_alone: is_alone(begun.submitted_ns, marks.submitted_ns, charged_ns),
            is_chained: begun.is_chained,
            is_unknown,
        };
        marks.push(mark);
        true
    }

    /// The launch that `begun` was made for did not happen.
    pub(crate) fn cancel(&self, begun: &Begun) {
        if let Some(stream) = self.streams.get(begun.stream)
            && let Some(marks) = stream.marks.try_hold()
            // Relaxed: see `stream`.
            && stream.key.load(Ordering::Relaxed) == begun.key
        {
            self.give_back(marks.context, begun.start);
        }
    }
}
