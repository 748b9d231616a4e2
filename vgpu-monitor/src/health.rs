//! Which cards are not to be used now, and why: XIDs, a driver that stops answering, a card that is lost; and when they
//! are well again. Never changes what is promised of a card.
