//! Rules for the tokens of an answer, and where in the answer they hold.

use std::fmt;
use std::sync::Arc;

use crate::llm::engine::Token;

/// A rule for the text of an answer: a grammar for example. Each choice follows it on its own.
pub trait Constraint: Send + Sync {
    /// The beginning of a text. It is called by the threads that compute masks.
    fn start(&self) -> Box<dyn ConstraintState>;
}

/// How far a text has followed its rule. It is used by one thread at a time. An error or a panic ends the request.
///
/// Each method must return within milliseconds: few threads compute for all requests, and one that never returns is
/// lost. The service does not wait for it when it ends.
pub trait ConstraintState: Send {
    /// Takes the next token of the text.
    fn advance(&mut self, token: Token) -> Result<(), String>;

    /// Takes what comes before the first token: the rest of the token with which the rule begins.
    fn advance_text(&mut self, text: &[u8]) -> Result<(), String>;

    /// Sets the bits of the tokens that may come next: bit `id % 32` of word `id / 32`. They are 0 before.
    /// Tokens that end the text are not meant; the result says whether they may come.
    fn allow(&mut self, tokens: &mut [u32]) -> Result<Next, String>;

    /// A copy that continues independently. With it the service computes which tokens may follow guesses of the next
    /// tokens, so that one step can verify several; its errors and panics end no request. None, as by default: the rule
    /// has no copies, and its text no [drafts](super::Options::drafting).
    fn fork(&self) -> Option<Box<dyn ConstraintState>> {
        None
    }

    /// What makes the other methods return early, with any result: it is called when the request ends while one of them
    /// runs. None: nothing does.
    fn stopper(&mut self) -> Option<Stopper> {
        None
    }
}

/// Stops what another thread computes. It must return at once.
pub type Stopper = Box<dyn Fn() + Send + Sync>;

/// What may follow a text.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Next {
    /// One of the tokens.
    Token,
    /// One of the tokens, or the end.
    TokenOrEnd,
    /// Nothing: the text is complete.
    End,
}

/// A rule, and the place where it begins.
#[derive(Clone)]
#[non_exhaustive]
pub struct Constrained {
    /// The rule.
    pub rule: Arc<dyn Constraint>,
    /// Free text that may come first.
    pub reasoning: Option<Reasoning>,
    /// The text is free up to the first of these texts, and again from the end of the rule up to the next.
    /// Empty: the rule begins with the answer, or after the reasoning, and the answer ends with it.
    pub markers: Vec<String>,
}

/// Text in which a model thinks before it answers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Reasoning {
    /// The prompt has begun it. It ends with this text.
    Begun(String),
    /// The answer may begin with it, if the first text comes first. It ends with the second one.
    Possible(String, String),
}

impl Reasoning {
    fn end(&self) -> &str {
        match self {
            Self::Begun(end) | Self::Possible(_, end) => end,
        }
    }
}

impl Constrained {
    /// The whole answer follows a rule.
    pub fn new(rule: Arc<dyn Constraint>) -> Self {
        Self {
            rule,
            reasoning: None,
            markers: Vec::new(),
        }
    }

    /// Whether its place depends on the text of the answer.
    pub(super) fn needs_text(&self) -> bool {
        self.reasoning.is_some() || !self.markers.is_empty()
    }

    /// What is searched for the beginning of the rule; None if that is the beginning of the answer.
    pub(super) fn gate(&self) -> Option<Gate> {
        match &self.reasoning {
            Some(Reasoning::Begun(_)) => Some(Gate::in_reasoning()),
            _ if self.markers.is_empty() => None,
            Some(Reasoning::Possible(..)) => Some(Gate::new(Place::Start)),
            None => Some(Gate::new(Place::Text)),
        }
    }
}

impl fmt::Debug for Constrained {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Constrained")
            .field("reasoning", &self.reasoning)
            .field("markers", &self.markers)
            .finish_non_exhaustive()
    }
}

/// Finds the place in free text where a rule begins.
#[derive(Clone)]
pub(super) struct Gate {
    place: Place,
    /// The end of the text, as far as it may belong to what is searched.
    held: Vec<u8>,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Place {
    /// Nothing but white space has come.
    Start,
    Reasoning,
    Text,
}

impl Gate {
    fn new(place: Place) -> Self {
        Self {
            place,
            held: Vec::new(),
        }
    }

    pub fn in_reasoning() -> Self {
        Self::new(Place::Reasoning)
    }

    pub fn in_text() -> Self {
        Self::new(Place::Text)
    }

    /// Takes the bytes of a token. If the rule begins in it, the bytes that come after the beginning.
    pub fn push(&mut self, bytes: &[u8], constrained: &Constrained) -> Option<Vec<u8>> {
        self.held.extend_from_slice(bytes);
        if self.place == Place::Start {
            self.begin(constrained)?;
        }
        if self.place == Place::Reasoning {
            let end = constrained.reasoning.as_ref().map_or("", Reasoning::end);
            self.skip_to(&[end])?;
            if constrained.markers.is_empty() {
                return Some(std::mem::take(&mut self.held));
            }
            self.place = Place::Text;
        }
        self.skip_to(&constrained.markers)?;
        Some(std::mem::take(&mut self.held))
    }

    /// None if more is needed to know whether the text begins with reasoning.
    fn begin(&mut self, constrained: &Constrained) -> Option<()> {
        let text = self.held.trim_ascii_start();
        self.place = match &constrained.reasoning {
            Some(Reasoning::Possible(begin, _)) if text.starts_with(begin.as_bytes()) => {
                self.held = text[begin.len()..].to_vec();
                Place::Reasoning
            }
            Some(Reasoning::Possible(begin, _)) if begin.as_bytes().starts_with(text) => {
                let space = self.held.len() - text.len();
                self.drop_before(space, &constrained.markers);
                return None;
            }
            _ => Place::Text,
        };
        Some(())
    }

    /// Drops what comes before a place, but for what may be the beginning of one of these texts.
    fn drop_before(&mut self, place: usize, texts: &[impl AsRef<str>]) {
        let longest = texts.iter().map(|text| text.as_ref().len()).max();
        let kept = longest.unwrap_or(0).saturating_sub(1);
        self.held.drain(..place.saturating_sub(kept));
    }

    /// Drops everything up to the end of the first of these texts, or what cannot be part of them.
    fn skip_to(&mut self, texts: &[impl AsRef<str>]) -> Option<()> {
        let ends = texts.iter().filter_map(|text| {
            let text = text.as_ref().as_bytes();
            let at = find(&self.held, text)?;
            Some((at, at + text.len()))
        });
        if let Some((_, end)) = ends.min() {
            self.held.drain(..end);
            return Some(());
        }
        self.drop_before(self.held.len(), texts);
        None
    }
}

fn find(text: &[u8], wanted: &[u8]) -> Option<usize> {
    let mut windows = text.windows(wanted.len().max(1));
    windows.position(|window| window == wanted)
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Nothing;

    impl Constraint for Nothing {
        fn start(&self) -> Box<dyn ConstraintState> {
            unreachable!("the gate does not need it")
        }
    }

    /// The text after the place where the rule begins, however the text is cut into tokens.
    #[track_caller]
    fn assert_begins(constrained: &Constrained, text: &str, rest: Option<&str>) {
        for size in 1..=text.len() {
            let mut gate = constrained.gate().expect("the beginning is free");
            let mut found = None;
            for token in text.as_bytes().chunks(size) {
                match &mut found {
                    Some(rest) => Vec::extend(rest, token),
                    None => found = gate.push(token, constrained),
                }
            }
            assert_eq!(
                found.as_deref(),
                rest.map(str::as_bytes),
                "{text} by {size}"
            );
        }
    }

    #[test]
    fn a_rule_begins_after_its_marker_and_not_in_reasoning() {
        let mut constrained = Constrained::new(Arc::new(Nothing));
        assert!(constrained.gate().is_none());
        let reasoning = ("<think>".to_owned(), "</think>".to_owned());
        constrained.reasoning = Some(Reasoning::Possible(reasoning.0, reasoning.1.clone()));
        assert!(constrained.gate().is_none());

        constrained.markers = vec!["<call>".into(), "[[".into()];
        assert_begins(&constrained, "so <<call>x", Some("x"));
        assert_begins(&constrained, "a [ [[b<call>", Some("b<call>"));
        assert_begins(&constrained, " <think>[[<call></think>c<call>d", Some("d"));
        assert_begins(&constrained, "x<think><call>y", Some("y"));
        assert_begins(&constrained, "<think>[[", None);
        assert_begins(&constrained, "<thin", None);

        // A marker may begin with the white space that may come before reasoning, of which little is kept.
        constrained.markers = vec!["  [".into()];
        assert_begins(&constrained, "      [x", Some("x"));
        assert_begins(&constrained, "  <think>  [</think>  [x", Some("x"));
        let mut gate = constrained.gate().expect("the beginning is free");
        for _ in 0..1000 {
            assert_eq!(gate.push(b" \n", &constrained), None);
        }
        assert!(gate.held.len() < 8, "{}", gate.held.len());
        constrained.markers = vec!["<call>".into(), "[[".into()];

        constrained.reasoning = Some(Reasoning::Begun(reasoning.1));
        assert_begins(&constrained, "<call></think><call>z", Some("z"));
        constrained.markers.clear();
        assert_begins(&constrained, "why </thin</think>\n{", Some("\n{"));
    }
}
