//! Progress of long work: a bar on standard error where that is a terminal, and nothing elsewhere.

use std::fmt::Display;

use indicatif::{ProgressBar, ProgressStyle};

pub struct Progress(ProgressBar);

impl Progress {
    /// Through so many bytes, if that is known.
    pub fn new(bytes: Option<u64>) -> Self {
        let bar = bytes.map_or_else(ProgressBar::new_spinner, ProgressBar::new);
        let template = match bytes {
            Some(_) => "{bar:32} {bytes} of {total_bytes}, {msg}, {elapsed}",
            None => "{spinner} {bytes}, {msg}, {elapsed}",
        };
        if let Ok(style) = ProgressStyle::with_template(template) {
            bar.set_style(style);
        }
        Self(bar)
    }

    /// Through rows, of which nothing but the message tells.
    pub fn of_rows() -> Self {
        let bar = ProgressBar::new_spinner();
        if let Ok(style) = ProgressStyle::with_template("{spinner} {msg}, {elapsed}") {
            bar.set_style(style);
        }
        Self(bar)
    }

    pub fn clear(&self) {
        self.0.finish_and_clear();
    }

    pub fn at(&self, bytes: u64, what: impl Display) {
        if !self.0.is_hidden() {
            self.0.set_message(what.to_string());
            self.0.set_position(bytes);
        }
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        self.clear();
    }
}
