//! Stop strings, matched across token boundaries.

/// Passes text on up to the first stop string, and holds back text that may be the beginning of one.
#[derive(Debug)]
pub(super) struct StopMatcher {
    stops: Vec<String>,
    held: String,
    found: Option<usize>,
}

impl StopMatcher {
    /// Empty stop strings are ignored.
    pub(super) fn new(stops: &[String]) -> Self {
        let stops = stops
            .iter()
            .filter(|stop| !stop.is_empty())
            .cloned()
            .collect();
        Self {
            stops,
            held: String::new(),
            found: None,
        }
    }

    /// The stop string that was found.
    #[cfg(feature = "scheduler")]
    pub(super) fn found(&self) -> Option<&str> {
        self.found.map(|index| self.stops[index].as_str())
    }

    /// Adds text. Returns the text that certainly precedes any stop string, and whether one was found. After one was
    /// found, nothing more may be pushed.
    pub(super) fn push(&mut self, text: &str) -> (String, bool) {
        self.held.push_str(text);
        let starts = self.stops.iter().enumerate();
        let starts = starts.filter_map(|(index, stop)| Some((self.held.find(stop)?, index)));
        if let Some((start, index)) = starts.min() {
            self.found = Some(index);
            self.held.truncate(start);
            return (std::mem::take(&mut self.held), true);
        }
        let free = self.held.len() - self.possible_start_len();
        let held = self.held.split_off(free);
        (std::mem::replace(&mut self.held, held), false)
    }

    /// Returns the text that was held back when no more text follows.
    pub(super) fn finish(&mut self) -> String {
        std::mem::take(&mut self.held)
    }

    /// Length of the longest suffix of the held text that is a prefix of a stop string.
    fn possible_start_len(&self) -> usize {
        let longest = |stop: &String| {
            let most = self.held.len().min(stop.len() - 1);
            (1..=most)
                .rev()
                .find(|&len| self.held.as_bytes().ends_with(&stop.as_bytes()[..len]))
        };
        // Both begin and end at character boundaries, so equal parts do too.
        self.stops.iter().filter_map(longest).max().unwrap_or(0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Pushes pieces until one matches; everything let through, and whether one matched.
    fn run(stops: &[&str], pieces: &[&str]) -> (String, bool) {
        let stops: Vec<String> = stops.iter().map(|stop| stop.to_string()).collect();
        let mut matcher = StopMatcher::new(&stops);
        let mut out = String::new();
        for piece in pieces {
            let (text, found) = matcher.push(piece);
            out += &text;
            if found {
                return (out, true);
            }
        }
        out += &matcher.finish();
        (out, false)
    }

    #[test]
    fn text_without_stop_passes_whole() {
        assert_eq!(run(&[], &["a", "b"]), ("ab".into(), false));
        assert_eq!(run(&["", "x"], &["a", "b"]), ("ab".into(), false));
    }

    #[test]
    fn stop_is_found_across_every_split() {
        let text = "hello<|end|>more";
        for first in 0..=text.len() {
            for second in first..=text.len() {
                let pieces = [&text[..first], &text[first..second], &text[second..]];
                assert_eq!(
                    run(&["<|end|>"], &pieces),
                    ("hello".into(), true),
                    "{pieces:?}"
                );
            }
        }
    }

    #[test]
    fn what_only_began_like_a_stop_is_let_through() {
        assert_eq!(
            run(&["abc"], &["ab", "abd", "ab"]),
            ("ababdab".into(), false)
        );
        assert_eq!(run(&["aab"], &["a", "a", "a", "b"]), ("a".into(), true));
    }

    #[test]
    fn only_what_may_become_a_stop_is_held() {
        let mut matcher = StopMatcher::new(&["\nUser:".into()]);
        assert_eq!(matcher.push("one\n"), ("one".into(), false));
        assert_eq!(matcher.push("two"), ("\ntwo".into(), false));
    }

    #[test]
    fn earliest_of_several_wins() {
        assert_eq!(run(&["c", "bcd"], &["abcd"]), ("a".into(), true));
        assert_eq!(run(&["x", "yz"], &["ay", "x"]), ("ay".into(), true));
    }

    #[test]
    fn characters_are_never_cut() {
        // The two begin with the same two bytes.
        let (stop, other) = ("€", "₭");
        assert_eq!(
            run(&[stop], &["1", other, "2"]),
            (format!("1{other}2"), false)
        );
        let mut matcher = StopMatcher::new(&["é!".into()]);
        assert_eq!(matcher.push("aé"), ("a".into(), false));
        assert_eq!(matcher.push("?"), ("é?".into(), false));
    }
}
