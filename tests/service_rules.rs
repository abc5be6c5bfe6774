//! Rules that answers follow: what their masks allow, masks that are late, and engines that fail meanwhile. No test
//! depends on how long something takes.
#![cfg(all(feature = "scheduler", feature = "text"))]

use std::sync::{Arc, Mutex, mpsc};
use std::time::Duration;

use worker_cuda::generate::service::*;
use worker_cuda::generate::{self, FinishReason, Service};
use worker_cuda::scheduler::{Plan, RequestId};
use worker_cuda::text::Tokenizer;
use worker_cuda::{LateRow, Token};

use models::tiny;
use service::*;

#[path = "support/models.rs"]
mod models;
#[path = "support/service.rs"]
mod service;

/// A rule: tokens stay or go up by one, from the first or the next one up to the last.
struct Stairs {
    first: Token,
    last: Token,
    /// All tokens that its texts have taken.
    taken: Mutex<Vec<Token>>,
    /// Each mask reports that it was begun, and waits for a permit.
    gate: Option<Turnstile>,
}

struct StairsRule(Arc<Stairs>);

/// One text of it: the token before, if there is one.
struct StairsText(Arc<Stairs>, Option<Token>);

impl Constraint for StairsRule {
    fn start(&self) -> Box<dyn ConstraintState> {
        Box::new(StairsText(self.0.clone(), None))
    }
}

impl ConstraintState for StairsText {
    fn advance(&mut self, token: Token) -> std::result::Result<(), String> {
        let before = self.1.replace(token).unwrap_or(self.0.first);
        self.0.taken.lock().unwrap().push(token);
        match token {
            50 => panic!("a rule that panics"),
            _ if (before..=before + 1).contains(&token) => Ok(()),
            _ => Err(format!("{token} after {before}")),
        }
    }

    fn advance_text(&mut self, text: &[u8]) -> std::result::Result<(), String> {
        text.iter().try_for_each(|byte| {
            let token = byte.checked_sub(b'!').ok_or("white space")?;
            self.advance(token.into())
        })
    }

    fn allow(&mut self, tokens: &mut [u32]) -> std::result::Result<Next, String> {
        if let Some(gate) = &self.0.gate {
            gate.pass("");
        }
        let first = self.1.unwrap_or(self.0.first);
        for token in first..=(first + 1).min(self.0.last) {
            tokens[token as usize / 32] |= 1 << (token % 32);
        }
        Ok(match self.1 {
            Some(token) if token == self.0.last => Next::End,
            Some(token) if token + 1 == self.0.last => Next::TokenOrEnd,
            _ => Next::Token,
        })
    }
}

fn stairs(first: Token, last: Token) -> (Arc<Stairs>, Constrained) {
    let stairs = Arc::new(Stairs {
        first,
        last,
        taken: Mutex::default(),
        gate: None,
    });
    let constrained = Constrained::new(Arc::new(StairsRule(stairs.clone())));
    (stairs, constrained)
}

/// Lets one through for each permit.
struct Turnstile {
    entered: mpsc::Sender<&'static str>,
    permits: Mutex<mpsc::Receiver<()>>,
}

impl Turnstile {
    /// With those who enter, and what permits come from; when that is dropped, all may pass.
    fn new() -> (Self, mpsc::Receiver<&'static str>, mpsc::Sender<()>) {
        let (entered, names) = mpsc::channel();
        let (permit, permits) = mpsc::channel();
        let permits = Mutex::new(permits);
        (Self { entered, permits }, names, permit)
    }

    fn pass(&self, name: &'static str) {
        let _ = self.entered.send(name);
        let _ = self.permits.lock().unwrap().recv();
    }
}

/// A rule that allows everything and reports what is called.
struct Probe<F>(Arc<F>);

struct ProbeText<F: Fn(&str)>(Arc<F>);

fn probe(called: impl Fn(&str) + Send + Sync + 'static) -> Constrained {
    Constrained::new(Arc::new(Probe(Arc::new(called))))
}

impl<F: Fn(&str) + Send + Sync + 'static> Constraint for Probe<F> {
    fn start(&self) -> Box<dyn ConstraintState> {
        (self.0)("start");
        Box::new(ProbeText(self.0.clone()))
    }
}

impl<F: Fn(&str) + Send + Sync + 'static> ConstraintState for ProbeText<F> {
    fn advance(&mut self, _: Token) -> std::result::Result<(), String> {
        Ok(())
    }

    fn advance_text(&mut self, _: &[u8]) -> std::result::Result<(), String> {
        Ok(())
    }

    fn allow(&mut self, tokens: &mut [u32]) -> std::result::Result<Next, String> {
        (self.0)("allow");
        tokens.fill(u32::MAX);
        Ok(Next::TokenOrEnd)
    }

    fn stopper(&mut self) -> Option<Stopper> {
        let called = self.0.clone();
        Some(Box::new(move || called("stop")))
    }
}

impl<F: Fn(&str)> Drop for ProbeText<F> {
    fn drop(&mut self) {
        (self.0)("drop");
    }
}

/// A request under a rule, which would count up without it.
fn under(constrained: &Constrained) -> Request {
    let mut request = Request::tokens([40]);
    request.constraint = Some(constrained.clone());
    request
}

/// The tokens of a text; `$` ends it.
fn script(text: &str) -> Vec<Token> {
    let token = |byte| match byte {
        b'$' => END,
        byte => Token::from(byte - b'!'),
    };
    text.bytes().map(token).collect()
}

/// What an engine that wants to say `wanted` says under a rule.
#[track_caller]
fn assert_says(constrained: &Constrained, wanted: &str, said: &str) {
    let tokens = script(wanted);
    let engine = ScriptedEngine::new(EngineLimits::new(64, 64), move |_, _| tokens.clone());
    let service = Service::start(engine, Some(tokenizer()), options()).unwrap();
    let mut request = Request::tokens([1]);
    request.constraint = Some(constrained.clone());

    let answer = collect(service.submit(&request).unwrap());

    assert_eq!(answer.texts, [said], "{:?}", answer.last);
    assert_eq!(answer.reason(), FinishReason::Eos);
    finish(service);
}

// '5' is token 20.
#[test]
fn an_answer_keeps_its_rule_and_ends_where_that_allows_it() {
    let (_, constrained) = stairs(20, 23);
    // What is not allowed becomes the first token that is.
    assert_says(&constrained, "06*78", "56678");
    // The end is allowed after '7', and there is nothing after '8'.
    assert_says(&constrained, "6$7$", "667");
    assert_says(&constrained, "678A", "678");
}

#[test]
fn free_text_comes_before_and_after_what_a_marker_begins() {
    let (stairs, mut constrained) = stairs(20, 22);
    constrained.markers = vec!["[[".into(), "@".into()];
    assert_says(&constrained, "AB[[067Z[@6*7Y$", "AB[[567Z[@667Y");
    assert_eq!(*stairs.taken.lock().unwrap(), script("567667"));
    assert_says(&constrained, "NO$", "NO");
}

#[test]
fn a_rule_begins_after_reasoning() {
    let (_, mut constrained) = stairs(20, 22);
    constrained.reasoning = Some(Reasoning::Begun("]>".into()));
    assert_says(&constrained, "A]B]>067", "A]B]>567");

    constrained.reasoning = Some(Reasoning::Possible("[".into(), "]".into()));
    assert_says(&constrained, "[A5]067", "[A5]567");
    assert_says(&constrained, "67", "67");
    assert_says(&constrained, "A[67", "5567");

    constrained.markers = vec!["@".into()];
    assert_says(&constrained, "[@A]B@067$", "[@A]B@567");
}

/// A service on an engine that repeats one text, and the answer to a request that has a rule.
fn answer_under(constrained: &Constrained, wanted: &str, tokenizer: Arc<Tokenizer>) -> Answer {
    let tokens = script(wanted);
    let engine = ScriptedEngine::new(EngineLimits::new(64, 64), move |_, _| tokens.clone());
    let service = Service::start(engine, Some(tokenizer), options()).unwrap();
    let mut request = Request::tokens([1]);
    request.constraint = Some(constrained.clone());
    let answer = collect(service.submit(&request).unwrap());
    // The service continues.
    let other = collect(service.submit(&Request::tokens([1])).unwrap());
    assert_eq!(other.reason(), FinishReason::Eos);
    finish(service);
    answer
}

#[test]
fn the_rest_of_the_token_with_which_a_rule_begins_belongs_to_it() {
    let mut vocabulary = tokenizer().vocabulary().clone();
    (vocabulary.tokens[61], vocabulary.tokens[62]) = ("@6".into(), "@A".into());
    let tokenizer = Arc::new(Tokenizer::from_vocabulary(vocabulary).unwrap());
    let (stairs, mut constrained) = stairs(20, 22);
    constrained.markers = vec!["@".into()];

    let wanted = "B^07_B$"; // '^' is token 61 and '_' token 62
    let answer = answer_under(&constrained, wanted, tokenizer.clone());

    // What follows the second marker is none of the rule's texts: another token comes instead.
    assert_eq!(answer.texts, ["B@667!B"]);
    assert_eq!(*stairs.taken.lock().unwrap(), [21, 21, 21, 22, 32]);

    constrained.markers.clear();
    constrained.reasoning = Some(Reasoning::Begun("@".into()));
    let answer = answer_under(&constrained, "_B@6$", tokenizer);
    assert_eq!(answer.texts, ["!B@6"]);
}

/// A marker and what follows it, cut at every byte: a token ends inside of the rule's text and begins anywhere before.
#[test]
fn a_token_across_the_end_of_a_marker_comes_only_if_the_rule_may_begin_so() {
    let marker = "<ASK>";
    let (_, mut constrained) = stairs(20, 22);
    constrained.markers = vec![marker.into()];
    for cut in 0..marker.len() {
        let mut vocabulary = tokenizer().vocabulary().clone();
        let crossing = |rest: &str| format!("{}{rest}", &marker[cut..]);
        (vocabulary.tokens[61], vocabulary.tokens[62]) = (crossing("56"), crossing("A"));
        // It would come instead of the other one that is refused.
        vocabulary.tokens[0] = crossing("5Z");
        let tokenizer = Arc::new(Tokenizer::from_vocabulary(vocabulary).unwrap());
        let before = &marker[..cut];
        for (wanted, said) in [
            (format!("NO{before}^07B$"), format!("NO{marker}5667B")),
            (
                format!("NO{before}_{marker}567$"),
                format!("NO{before}\"{marker}567"),
            ),
            (
                format!("{before}^7{before}_$"),
                format!("{marker}567{before}\""),
            ),
        ] {
            let answer = answer_under(&constrained, &wanted, tokenizer.clone());
            assert_eq!(answer.texts, [said], "{wanted}: {:?}", answer.last);
        }
    }
}

#[test]
fn white_space_between_a_marker_and_a_rule_belongs_to_neither() {
    let mut vocabulary = tokenizer().vocabulary().clone();
    // Byte-level tokens write a space as 'Ġ' and a line's end as 'Ċ'.
    (vocabulary.tokens[61], vocabulary.tokens[62]) = ("@ĊĊ".into(), "@Ġ6".into());
    let tokenizer = Arc::new(Tokenizer::from_vocabulary(vocabulary).unwrap());
    let (_, mut constrained) = stairs(20, 22);
    constrained.reasoning = Some(Reasoning::Begun("@".into()));
    for (wanted, said) in [("A^067$", "A@\n\n567"), ("A_07$", "A@ 667")] {
        let answer = answer_under(&constrained, wanted, tokenizer.clone());
        assert_eq!(answer.texts, [said]);
    }
    (constrained.reasoning, constrained.markers) = (None, vec!["@".into()]);
    let answer = answer_under(&constrained, "A^067B$", tokenizer);
    assert_eq!(answer.texts, ["A@\n\n567B"]);
}

#[test]
fn a_rule_that_fails_ends_its_request_only() {
    let (_, panics) = stairs(49, 52);
    assert_eq!(
        answer_under(&panics, "RS$", tokenizer()).error(),
        "constraint"
    );
    let (_, allows_nothing) = stairs(30, 29);
    let answer = answer_under(&allows_nothing, "A$", tokenizer());
    let Some(Event::Failed(error)) = answer.last else {
        panic!("{answer:?}");
    };
    assert_eq!(
        error.to_string(),
        "the rule of the answer: no token of the model continues the text"
    );
    let (_, mut constrained) = stairs(20, 22);
    constrained.markers = vec!["@".into()];
    let service = scripted_without_tokenizer();
    let mut request = Request::tokens([1]);
    request.constraint = Some(constrained);
    let refused = service.submit(&request).unwrap_err();
    assert_eq!(
        refused.to_string(),
        "constraint: reasoning and markers need a tokenizer"
    );
    finish(service);
}

fn scripted_without_tokenizer() -> Service {
    let engine = ScriptedEngine::new(EngineLimits::new(64, 64), count_up);
    Service::start(engine, None, options()).unwrap()
}

#[test]
fn a_rule_takes_each_token_once_though_steps_fail_and_sequences_are_preempted() {
    let (service, control) = scripted(options());
    let (stairs, constrained) = stairs(10, 48);
    control.hold();
    // Four sequences of up to 39 tokens need 12 pages; there are 8.
    let receivers: Vec<_> = (0..4)
        .map(|_| {
            let mut request = Request::tokens([9]);
            request.constraint = Some(constrained.clone());
            service.submit(&request).unwrap()
        })
        .collect();
    control.step(9);
    control.wait_until_held();
    control.fail(1);
    control.release();

    let answers: Vec<_> = receivers.into_iter().map(collect).collect();

    let expected: Vec<Token> = (10..=48).collect();
    for answer in answers {
        assert_eq!(answer.tokens, std::slice::from_ref(&expected));
    }
    assert_eq!(service.stats().engine_faults, 1);
    assert!(service.stats().preempted > 0);
    let mut taken = stairs.taken.lock().unwrap().clone();
    taken.sort_unstable();
    let four_times: Vec<Token> = expected.iter().flat_map(|&token| [token; 4]).collect();
    assert_eq!(taken, four_times);
    finish(service);
}

#[test]
fn a_mask_that_is_not_there_holds_its_own_request_only() {
    let (gate, entered, permit) = Turnstile::new();
    let (stairs, _) = stairs(20, 22);
    let mut stairs = Arc::into_inner(stairs).unwrap();
    stairs.gate = Some(gate);
    let rule = Arc::new(StairsRule(Arc::new(stairs)));
    let mut options = options();
    options.clock = Clock::manual();
    let clock = options.clock.clone();
    let (service, control) = scripted(options);
    let mut request = Request::tokens([19]);
    request.constraint = Some(Constrained::new(rule));
    let other = Request::tokens([2]);

    let slow = service.submit(&request).unwrap();
    let answer = collect(service.submit(&other).unwrap());
    assert_eq!(answer.tokens[0].len(), 47);
    for _ in 0..4 {
        permit.send(()).unwrap();
        entered.recv().unwrap();
    }
    assert_eq!(collect(slow).texts, ["567"]);

    // Three steps without it, and a second.
    control.hold();
    let late = service.submit(&request).unwrap();
    entered.recv().unwrap();
    let other = service.submit(&other).unwrap();
    control.wait_until_held();
    clock.advance(Duration::from_secs(1));
    control.release();
    assert_eq!(collect(late).error(), "rule_too_slow");
    assert_eq!(collect(other).reason(), FinishReason::Eos);

    // Ten seconds, without any other request.
    let late = service.submit(&request).unwrap();
    entered.recv().unwrap();
    clock.advance(Duration::from_secs(10));
    assert_eq!(collect(late).error(), "rule_too_slow");
    drop(permit);
    finish(service);
}

/// The requests of a step, and how many of its rows are late and held.
#[derive(Clone)]
struct Listed {
    requests: Vec<RequestId>,
    late: usize,
    held: usize,
}

/// Lists its steps.
struct Listing {
    engine: ScriptedEngine,
    steps: Arc<Mutex<Vec<Listed>>>,
}

impl StepEngine for Listing {
    fn limits(&self) -> EngineLimits {
        self.engine.limits()
    }

    fn submit(&mut self, plan: &Plan, rows: &dyn RowSource) -> worker_cuda::Result<()> {
        self.steps.lock().unwrap().push(Listed {
            requests: plan.rows().iter().map(|row| row.request).collect(),
            late: 0,
            held: 0,
        });
        self.engine.submit(plan, rows)
    }

    fn sample(&mut self, rows: &[LateRow<'_>]) -> worker_cuda::Result<()> {
        let mut steps = self.steps.lock().unwrap();
        let step = steps.last_mut().unwrap();
        step.late = rows.len();
        step.held = rows.iter().filter(|row| **row == LateRow::Hold).count();
        self.engine.sample(rows)
    }

    fn wait(&mut self, results: &mut StepResults) -> worker_cuda::Result<()> {
        self.engine.wait(results)
    }
}

#[test]
fn a_request_under_a_rule_has_a_row_in_each_step_unless_its_mask_is_late() {
    let answer = |prompt: &[Token], _| match prompt {
        [1] => vec![7], // without an end
        prompt => count_up(prompt, 0),
    };
    let steps = Arc::<Mutex<Vec<Listed>>>::default();
    let engine = Listing {
        engine: ScriptedEngine::new(EngineLimits::new(1 << 16, 64), answer),
        steps: Arc::clone(&steps),
    };
    let service = Service::start(engine, Some(tokenizer()), options()).unwrap();
    let mut free = service.submit(&Request::tokens([1])).unwrap();
    assert!(matches!(free.next(), Some(Event::Started { .. })));
    let reader = std::thread::spawn(move || free.for_each(drop));
    let mut request = Request::tokens([9]);
    request.constraint = Some(stairs(10, 48).1);

    let answer = collect(service.submit(&request).unwrap());

    assert_eq!(answer.tokens[0].len(), 39);
    let steps = steps.lock().unwrap().clone();
    let other = steps[0].requests[0];
    let has_row = |step: &Listed| step.requests.iter().any(|&id| id != other);
    let first = steps.iter().position(has_row).unwrap();
    let last = steps.iter().rposition(has_row).unwrap();
    for (index, pair) in steps[first..=last].windows(2).enumerate() {
        let has_left = has_row(&pair[0]) && !has_row(&pair[1]);
        assert!(!has_left || pair[0].held == 1, "step {index}");
    }
    drop(service);
    reader.join().unwrap();
}

#[test]
fn a_row_whose_mask_is_late_is_held_and_repeated() {
    let (gate, entered, permit) = Turnstile::new();
    let (stairs, _) = stairs(20, 22);
    let mut stairs = Arc::into_inner(stairs).unwrap();
    stairs.gate = Some(gate);
    let steps = Arc::<Mutex<Vec<Listed>>>::default();
    let engine = Listing {
        engine: ScriptedEngine::new(EngineLimits::new(64, 64), count_up),
        steps: Arc::clone(&steps),
    };
    let mut options = options();
    options.clock = Clock::manual();
    let service = Service::start(engine, Some(tokenizer()), options).unwrap();
    let mut request = Request::tokens([19]);
    request.constraint = Some(Constrained::new(Arc::new(StairsRule(Arc::new(stairs)))));

    let slow = service.submit(&request).unwrap();
    permit.send(()).unwrap();
    // The second mask is begun when the first token is there.
    entered.recv().unwrap();
    entered.recv().unwrap();
    let other = collect(service.submit(&Request::tokens([2])).unwrap());
    assert_eq!(other.tokens[0].len(), 47);
    let held = |steps: &[Listed]| steps.iter().map(|step| step.held).sum::<usize>();
    assert_eq!(held(&steps.lock().unwrap()), 1);
    drop(permit);

    assert_eq!(collect(slow).texts, ["567"]);
    assert!(
        steps
            .lock()
            .unwrap()
            .iter()
            .map(|step| step.late)
            .sum::<usize>()
            >= 2
    );
    finish(service);
}

#[test]
fn answers_that_follow_rules_are_the_same_together_as_alone() {
    let engine = engine_options();
    let service = Service::with_tokenizer(&tiny(), &engine, tokenizer(), Options::default());
    let service = service.unwrap();
    let submit = |number| {
        let mut request = request(number);
        request.constraint = Some(stairs(20 + number as Token, 40).1);
        service.submit(&request).unwrap()
    };

    let alone: Vec<_> = (0..4)
        .map(|number| collect(submit(number)).tokens)
        .collect();
    let together: Vec<_> = (0..4).map(submit).collect();

    for (events, alone) in together.into_iter().zip(alone) {
        assert_eq!(collect(events).tokens, alone);
        let steps = alone[0]
            .windows(2)
            .map(|pair| pair[1].wrapping_sub(pair[0]));
        assert!(alone[0].len() > 4 && steps.into_iter().all(|step| step <= 1));
    }
    finish(service);
}

/// One thread for masks, and a clock that stands still.
fn one_mask_thread() -> Options {
    let mut options = options();
    options.mask_threads = 1;
    options.clock = Clock::manual();
    options
}

#[test]
fn tenants_take_turns_and_ended_requests_need_no_masks() {
    let (service, control) = scripted(one_mask_thread());
    control.hold();
    let (gate, entered, permit) = Turnstile::new();
    let gate = Arc::new(gate);
    let submit = |name: &'static str, tenant| {
        let gate = gate.clone();
        let mut request = under(&probe(move |call| {
            if call == "allow" {
                gate.pass(name)
            }
        }));
        request.tenant = tenant;
        service.submit(&request).unwrap()
    };

    let first = submit("first", 0);
    assert_eq!(entered.recv(), Ok("first"));
    let (left, second, other) = (submit("left", 0), submit("second", 0), submit("other", 1));
    drop(left);
    drop(permit);

    assert_eq!(entered.recv(), Ok("other"));
    assert_eq!(entered.recv(), Ok("second"));
    control.release();
    for request in [first, second, other] {
        assert_eq!(collect(request).reason(), FinishReason::Eos);
    }
    assert!(entered.try_iter().all(|name| name != "left"));
    finish(service);
}

#[test]
fn a_mask_that_waits_for_a_thread_is_not_late() {
    let options = one_mask_thread();
    let clock = options.clock.clone();
    let (service, _) = scripted(options);
    let (gate, entered, permit) = Turnstile::new();
    let stuck = probe(move |call| {
        if call == "allow" {
            gate.pass("stuck")
        }
    });

    let slow = service.submit(&under(&stuck)).unwrap();
    entered.recv().unwrap();
    let waits = service.submit(&under(&probe(|_| ()))).unwrap();
    clock.advance(Duration::from_secs(2));
    collect(service.submit(&Request::tokens([2])).unwrap());
    assert_eq!(collect(slow).error(), "rule_too_slow");
    permit.send(()).unwrap();
    assert_eq!(collect(waits).reason(), FinishReason::Eos);

    let slow = service.submit(&under(&stuck)).unwrap();
    entered.recv().unwrap();
    let waits = service.submit(&under(&probe(|_| ()))).unwrap();
    clock.advance(Duration::from_secs(10));
    assert_eq!(collect(slow).error(), "rule_too_slow");
    let Some(Event::Failed(error)) = collect(waits).last else {
        panic!("it waits too long");
    };
    assert_eq!((error.as_str(), error.is_temporary()), ("mask_late", true));
    drop(permit);
    finish(service);
}

#[test]
fn the_masks_of_a_request_have_a_mean_time() {
    for limit in [Some(Duration::from_millis(5)), None] {
        let mut options = one_mask_thread();
        options.mask_time = limit;
        let clock = options.clock.clone();
        let (service, _) = scripted(options);
        let masks = Arc::new(Mutex::new(0));
        let count = masks.clone();
        let slow = probe(move |call| {
            if call == "allow" {
                *count.lock().unwrap() += 1;
                clock.advance(Duration::from_millis(100));
            }
        });
        let mut request = under(&slow);
        (request.prompt, request.choices) = (generate::Prompt::Tokens(vec![2]), 2);

        let answer = collect(service.submit(&request).unwrap());

        match limit {
            // 1,000 / (100 - 5), for both choices.
            Some(_) => {
                assert_eq!(answer.error(), "rule_too_slow");
                assert!((11..=13).contains(&*masks.lock().unwrap()));
            }
            None => assert_eq!(answer.reason(), FinishReason::Eos),
        }
        finish(service);
    }
}

#[test]
fn what_computes_a_mask_is_stopped_when_its_request_ends() {
    let (service, _) = scripted(one_mask_thread());
    let (gate, entered, permit) = Turnstile::new();
    let permit = Mutex::new(permit);
    let request = under(&probe(move |call| match call {
        "allow" => gate.pass(""),
        "stop" => permit.lock().unwrap().send(()).unwrap(),
        _ => {}
    }));

    let cancelled = service.submit(&request).unwrap();
    entered.recv().unwrap();
    drop(cancelled);

    // The thread is free for others.
    let other = service.submit(&under(&probe(|_| ()))).unwrap();
    assert_eq!(collect(other).reason(), FinishReason::Eos);
    let running = service.submit(&request).unwrap();
    entered.recv().unwrap();
    assert_eq!(service.drain(Duration::ZERO), 1);
    assert_eq!(collect(running).error(), "shut_down");
}

#[test]
fn a_service_ends_though_a_mask_does_not() {
    let (service, _) = scripted(options());
    let (gate, entered, permit) = Turnstile::new();
    let endless = probe(move |call| {
        if call == "allow" {
            gate.pass("")
        }
    });

    let request = service.submit(&under(&endless)).unwrap();
    entered.recv().unwrap();

    assert_eq!(service.drain(Duration::ZERO), 1);
    assert_eq!(collect(request).error(), "shut_down");
    drop(permit);
}

#[test]
fn rules_that_panic_where_they_begin_or_end_fail_alone() {
    let service = Service::start(
        ScriptedEngine::new(EngineLimits::new(64, 64), count_up),
        Some(tokenizer()),
        one_mask_thread(),
    )
    .unwrap();
    for panics in ["start", "allow", "stop", "drop"] {
        let mut constrained = probe(move |call| assert_ne!(call, panics));
        for reasoning in [None, Some(Reasoning::Begun("R".into()))] {
            constrained.reasoning = reasoning;
            let answer = collect(service.submit(&under(&constrained)).unwrap());
            if panics != "stop" && constrained.reasoning.is_none() {
                assert_eq!(answer.error(), "constraint", "{panics}");
            }
        }
        let other = service.submit(&under(&probe(|_| ()))).unwrap();
        assert_eq!(collect(other).reason(), FinishReason::Eos, "{panics}");
    }
    assert_eq!(service.state(), State::Ready);
    finish(service);
}

#[test]
fn a_request_in_the_queue_has_no_state_of_its_rule() {
    let (service, control) = scripted(one_mask_thread());
    control.hold();
    let (call, calls) = mpsc::channel();
    let rule = probe(move |name| call.send(name.to_owned()).unwrap());
    let requests = [(); 6].map(|()| service.submit(&under(&rule)).unwrap());

    // One after another, since there is one thread.
    for _ in 0..6 {
        for expected in ["start", "allow", "drop"] {
            assert_eq!(calls.recv().unwrap(), expected);
        }
    }
    control.release();
    for request in requests {
        assert_eq!(collect(request).reason(), FinishReason::Eos);
    }
    finish(service);
}
