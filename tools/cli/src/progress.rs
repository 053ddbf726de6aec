//! Progress of long work: a bar on standard error if that is a terminal, and nothing otherwise.
//!
//! The bar shows the amount done and the rate, and the time left where the total is known or
//! estimated.

use std::fmt::{Display, Write};

use indicatif::{HumanCount, HumanDuration, ProgressBar, ProgressState, ProgressStyle};

pub struct Progress(ProgressBar);

impl Progress {
    /// Counts bytes, up to `bytes` if that total is known.
    pub fn new(bytes: Option<u64>) -> Self {
        let bar = bytes.map_or_else(ProgressBar::new_spinner, ProgressBar::new);
        let progress = Self(bar);
        progress.set_style(match bytes {
            Some(_) => "{bar:20} {bytes} of {total_bytes}, {msg}, {bytes_per_sec}, {elapsed}, {left} left",
            None => "{spinner} {bytes}, {msg}, {bytes_per_sec}, {elapsed}",
        });
        progress
    }

    /// Counts items of this kind (rows, row locks, cells); [`Progress::set`] may replace the word.
    pub fn items(what: &'static str) -> Self {
        let progress = Self(ProgressBar::new_spinner().with_message(what));
        progress.set_style("{spinner} {human_pos} {msg}, {rate}, {elapsed}");
        progress
    }

    /// Sets the total number of items; `about` is the text before the total, "about " for an
    /// estimate.
    pub fn expect(&self, total: u64, about: &str) {
        if self.is_visible() {
            // The style is set before the length, because setting the length draws the bar.
            self.set_style(&format!(
                "{{bar:20}} {{human_pos}} of {about}{{human_len}} {{msg}}, {{rate}}, {{elapsed}}, {{left}} left"
            ));
            self.0.set_length(total);
            // The estimate of the time left starts anew, because the items before this call were
            // counted at another rate.
            self.0.reset_eta();
        }
    }

    /// Whether the bar is drawn.
    pub fn is_visible(&self) -> bool {
        !self.0.is_hidden()
    }

    pub fn clear(&self) {
        self.0.finish_and_clear();
    }

    pub fn set(&self, position: u64, what: impl Display) {
        if self.is_visible() {
            self.0.set_message(what.to_string());
            // The total may have been an estimate that is too low.
            if self.0.length().is_some_and(|length| length < position) {
                self.0.set_length(position);
            }
            self.0.set_position(position);
            if position == 0 {
                self.0.reset_eta();
            }
        }
    }

    fn set_style(&self, template: &str) {
        if let Ok(style) = ProgressStyle::with_template(template) {
            self.0.set_style(style.with_key("rate", rate).with_key("left", left));
        }
    }
}

#[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "a rate")]
fn rate(state: &ProgressState, out: &mut dyn Write) {
    // An error of formatting only leaves the cell empty.
    let _ = write!(out, "{}/s", HumanCount(state.per_sec() as u64));
}

/// The time left; unknown before the first item.
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
