//! Progress of long work: a bar on standard error where that is a terminal, and nothing elsewhere. It tells how much is done, how fast
//! that goes, and where the end is known, or can be guessed, how long the rest takes.

use std::fmt::{Display, Write};

use indicatif::{HumanCount, HumanDuration, ProgressBar, ProgressState, ProgressStyle};

pub struct Progress(ProgressBar);

impl Progress {
    /// Through so many bytes, if that is known.
    pub fn new(bytes: Option<u64>) -> Self {
        let bar = bytes.map_or_else(ProgressBar::new_spinner, ProgressBar::new);
        let progress = Self(bar);
        progress.styled(match bytes {
            Some(_) => "{bar:20} {bytes} of {total_bytes}, {msg}, {bytes_per_sec}, {elapsed}, {left} left",
            None => "{spinner} {bytes}, {msg}, {bytes_per_sec}, {elapsed}",
        });
        progress
    }

    /// Through rows, row locks or cells, which the message names behind their number; this one before there is another.
    pub fn of(what: &'static str) -> Self {
        let progress = Self(ProgressBar::new_spinner().with_message(what));
        progress.styled("{spinner} {human_pos} {msg}, {rate}, {elapsed}");
        progress
    }

    /// There are so many of them, or `about` so many.
    pub fn expect(&self, total: u64, about: &str) {
        if self.is_seen() {
            // Before the length is, which draws.
            self.styled(&format!(
                "{{bar:20}} {{human_pos}} of {about}{{human_len}} {{msg}}, {{rate}}, {{elapsed}}, {{left}} left"
            ));
            self.0.set_length(total);
            // Whatever came before has its own rate.
            self.0.reset_eta();
        }
    }

    /// Whether anybody sees it.
    pub fn is_seen(&self) -> bool {
        !self.0.is_hidden()
    }

    pub fn clear(&self) {
        self.0.finish_and_clear();
    }

    pub fn at(&self, position: u64, what: impl Display) {
        if self.is_seen() {
            self.0.set_message(what.to_string());
            // What was expected may have been too little.
            if self.0.length().is_some_and(|length| length < position) {
                self.0.set_length(position);
            }
            self.0.set_position(position);
            if position == 0 {
                self.0.reset_eta();
            }
        }
    }

    fn styled(&self, template: &str) {
        if let Ok(style) = ProgressStyle::with_template(template) {
            self.0.set_style(style.with_key("rate", rate).with_key("left", left));
        }
    }
}

#[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "a rate")]
fn rate(state: &ProgressState, out: &mut dyn Write) {
    // A terminal that does not take it shows that itself.
    let _ = write!(out, "{}/s", HumanCount(state.per_sec() as u64));
}

/// How long the rest takes; unknown before the first part is done.
fn left(state: &ProgressState, out: &mut dyn Write) {
    let _ = match state.pos() {
        0 => write!(out, "?"),
        _ => write!(out, "{:#}", HumanDuration(state.eta())),
    };
}

impl Drop for Progress {
    fn drop(&mut self) {
        self.clear();
    }
}
