//! Engines, sequences and steps on the host backend, with a tiny model of random weights.

use std::time::Duration;

use worker_cuda::*;

use models::{golden, golden_hidden_states, host, tiny, tiny_models};

#[path = "support/forget.rs"]
mod forget;
#[path = "support/models.rs"]
mod models;

fn options() -> EngineOptions {
    EngineOptions::new()
        .max_sequences(4)
        .max_batch_tokens(64)
        .max_logits_rows(64)
        .max_top_logprobs(8)
}

fn engine() -> Engine {
    Engine::new(&tiny(), &options()).unwrap()
}

fn run(engine: &mut Engine, row: Row<'_>) -> StepOutput {
    let ticket = engine.submit(&Step::new().row(row)).unwrap();
    engine.wait(ticket).unwrap()
}

/// The tokens that follow a prompt, greedily, one step a token.
fn greedy(engine: &mut Engine, sequence: &Sequence, prompt: &[Token], count: usize) -> Vec<Token> {
    let sampling = Sampling::greedy();
    let mut next = prompt.to_vec();
    let mut tokens = Vec::new();
    for _ in 0..count {
        let output = run(engine, Row::tokens(sequence, &next).sample(&sampling));
        next = vec![output.rows()[0].token.unwrap()];
        tokens.push(next[0]);
    }
    tokens
}

fn argmax(logits: &[f32]) -> Token {
    let best = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    logits.iter().position(|&logit| logit == best).unwrap() as Token
}

#[test]
fn profile_has_the_time_of_each_node() {
    let mut engine = engine();
    let sequence = engine.create_sequence().unwrap();
    assert_eq!(
        engine.profile().unwrap_err().kind(),
        ErrorKind::InvalidState
    );

    engine.set_profiling(true).unwrap();
    run(&mut engine, Row::tokens(&sequence, &[1, 2, 3]).logits_all());
    let profile = engine.profile().unwrap();

    assert_eq!(profile.nodes.last().unwrap().operation, "logits");
    assert!(profile.nodes.iter().all(|node| node.measured_ns > 0.0));
}

#[test]
fn persistent_layers_are_never_on_the_host() {
    let auto = Engine::new(&tiny(), &options()).unwrap();
    let off = options().persistent_layers(PersistentLayers::Off);
    let off = Engine::new(&tiny(), &off).unwrap();
    let on = options().persistent_layers(PersistentLayers::On);
    let error = Engine::new(&tiny(), &on).err().unwrap();

    assert!(!auto.info().unwrap().has_persistent_layers);
    assert!(!off.info().unwrap().has_persistent_layers);
    assert_eq!(error.kind(), ErrorKind::Unsupported);
}

#[test]
fn hidden_states_of_every_tiny_model_are_the_golden_ones() {
    for path in tiny_models() {
        let model = Model::load(&host(), &Gguf::open(&path).unwrap()).unwrap();
        let (tokens, _) = golden(&path);
        let expected = golden_hidden_states(&path);
        let width = model.info().embedding_length as usize;
        let mut engine = Engine::new(&model, &options().hidden_states(true)).unwrap();
        let mut of = |of: HiddenState, tokens: &[Token]| {
            let sequence = engine.create_sequence().unwrap();
            let output = run(&mut engine, Row::tokens(&sequence, tokens).hidden_state(of));
            output.hidden_state(&output.rows()[0]).to_vec()
        };

        let states = [
            of(HiddenState::First, &tokens),
            of(HiddenState::Last, &tokens),
            of(HiddenState::Sum, &tokens),
        ];

        let sum = |i: usize| expected.iter().skip(i).step_by(width).sum::<f32>();
        for i in 0..width {
            let last = expected[(tokens.len() - 1) * width + i];
            let wanted = [expected[i], last, sum(i)];
            for (state, wanted) in states.iter().zip(wanted) {
                assert_eq!(state.len(), width);
                // As for logits: bf16 activations; of a sum, each of 48 tokens may be off.
                assert!((state[i] - wanted).abs() <= 0.15, "{path:?}, value {i}");
            }
        }
    }
}

#[test]
fn hidden_states_need_the_option() {
    let mut engine = engine();
    let sequence = engine.create_sequence().unwrap();
    let row = Row::tokens(&sequence, &[1, 2, 3]).hidden_state(HiddenState::Last);

    let error = engine.submit(&Step::new().row(row)).unwrap_err();

    assert_eq!(error.kind(), ErrorKind::InvalidArgument);
    assert!(!engine.info().unwrap().hidden_states);
}

#[test]
fn drafts_give_the_tokens_of_the_run_without_them() {
    let options = options().max_draft_tokens(Row::MAX_DRAFTS as u32);
    let mut engine = Engine::new(&tiny(), &options).unwrap();
    assert_eq!(engine.info().unwrap().max_draft_tokens, 15);
    let prompt = [1, 2, 3];
    let mut sampling = Sampling::greedy();
    sampling.top_logprobs = 2;
    let plain = engine.create_sequence().unwrap();
    let mut expected = Vec::new();
    let mut row = Row::tokens(&plain, &prompt);
    for _ in 0..12 {
        let output = run(&mut engine, row.sample(&sampling));
        let result = &output.rows()[0];
        let top: Vec<_> = output.top(result).collect();
        assert!(
            output
                .sampled(result)
                .eq([(result.token.unwrap(), result.logprob)])
        );
        assert!(output.top_of(result, 0).eq(top.clone()));
        assert_eq!(output.top_of(result, 1).len(), 0);
        expected.push((result.token.unwrap(), result.logprob, top));
        row = Row::feed_sampled(&plain);
    }
    let token = |i: usize| expected[i].0;

    let sequence = engine.create_sequence().unwrap();
    let drafts = [token(0), token(1), token(2), token(3) + 1, 7];
    let row = Row::tokens(&sequence, &prompt)
        .sample(&sampling)
        .drafts(&drafts);
    let output = run(&mut engine, row.logits_last());
    let result = output.rows()[0];
    let found: Vec<_> = output
        .sampled(&result)
        .enumerate()
        .map(|(i, (token, logprob))| (token, logprob, output.top_of(&result, i).collect()))
        .collect();

    assert_eq!(found, expected[..4]);
    assert_eq!(output.top(&result).len(), 8);
    assert_eq!(result.token, Some(token(3)));
    assert_eq!((result.token_count, sequence.len().unwrap()), (6, 6));
    let vocabulary = engine.model().info().vocabulary_size as usize;
    assert_eq!(output.logits(&result).len(), 6 * vocabulary);
    assert_eq!(
        argmax(&output.logits(&result)[3 * vocabulary..][..vocabulary]),
        token(3)
    );

    let stop = [token(6)];
    let drafts: Vec<Token> = (4..10).map(token).collect();
    let row = Row::feed_sampled(&sequence).sample(&sampling);
    let output = run(&mut engine, row.drafts(&drafts).stop_tokens(&stop));
    let first_stop = (4..).find(|&i| token(i) == stop[0]).unwrap();

    assert_eq!(output.sampled(&output.rows()[0]).len(), first_stop - 3);
    assert_eq!(output.rows()[0].token, Some(stop[0]));
}

#[test]
fn a_fed_row_continues_drafts_in_flight() {
    let options = options().max_draft_tokens(Row::MAX_DRAFTS as u32);
    let mut engine = Engine::new(&tiny(), &options).unwrap();
    let (prompt, sampling) = ([1, 2, 3], Sampling::greedy());
    let plain = engine.create_sequence().unwrap();
    let expected = greedy(&mut engine, &plain, &prompt, 8);
    for good in 0..=4 {
        let mut drafts = expected[..4].to_vec();
        if let Some(wrong) = drafts.get_mut(good) {
            *wrong += 1;
        }
        let sequence = engine.create_sequence().unwrap();
        let drafting = Row::tokens(&sequence, &prompt)
            .sample(&sampling)
            .drafts(&drafts);
        let next = Row::feed_sampled(&sequence).sample(&sampling);
        let first = engine.submit(&Step::new().row(drafting)).unwrap();
        for refused in [Row::tokens(&sequence, &prompt), next.drafts(&drafts)] {
            let error = engine.submit(&Step::new().row(refused)).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::InvalidState);
        }
        let second = engine.submit(&Step::new().row(next)).unwrap();

        assert_eq!(sequence.len().unwrap(), 3 + 4 + 1);
        let output = engine.wait(first).unwrap();
        let tokens: Vec<Token> = output.sampled(&output.rows()[0]).map(|one| one.0).collect();
        assert_eq!(tokens, expected[..=good]);
        assert_eq!(sequence.len().unwrap() as usize, 3 + good + 1);
        let output = engine.wait(second).unwrap();
        assert_eq!(output.rows()[0].token, Some(expected[good + 1]));
        assert_eq!(output.rows()[0].first_position as usize, 3 + good);
        assert_eq!(sequence.len().unwrap() as usize, 3 + good + 1);
    }
}

#[test]
fn logits_of_every_tiny_model_are_the_golden_ones() {
    for path in tiny_models() {
        let model = Model::load(&host(), &Gguf::open(&path).unwrap()).unwrap();
        let (tokens, expected) = golden(&path);
        let mut engine = Engine::new(&model, &options()).unwrap();
        let sequence = engine.create_sequence().unwrap();

        let output = run(&mut engine, Row::tokens(&sequence, &tokens).logits_all());

        let logits = output.logits(&output.rows()[0]);
        assert_eq!(logits.len(), expected.len());
        let scale = expected
            .iter()
            .fold(0f32, |most, logit| most.max(logit.abs()));
        let worst = logits
            .iter()
            .zip(&expected)
            .fold(0f32, |most, (a, b)| most.max((a - b).abs()));
        // Activations are rounded to bf16 or better (8 bits) and keys and values to f16.
        assert!(
            worst <= 0.02 * scale,
            "{}: {worst} of {scale}",
            path.display()
        );
    }
}

#[test]
fn logprobs_of_own_tokens_of_every_tiny_model_follow_from_the_golden_logits() {
    for path in tiny_models() {
        let model = Model::load(&host(), &Gguf::open(&path).unwrap()).unwrap();
        let (tokens, logits) = golden(&path);
        let vocabulary = logits.len() / tokens.len();
        // Fewer rows of logits than tokens.
        let options = options().max_logits_rows(3).token_logprobs(true);
        let mut engine = Engine::new(&model, &options).unwrap();
        assert!(engine.info().unwrap().token_logprobs);
        let sequence = engine.create_sequence().unwrap();
        let (head, tail) = tokens.split_at(tokens.len() / 2);

        let mut found: Vec<(f32, Vec<(Token, f32)>)> = Vec::new();
        for (part, next) in [(head, Some(tail[0])), (tail, None)] {
            let output = run(
                &mut engine,
                Row::tokens(&sequence, part).token_logprobs(4, next),
            );
            let row = output.rows()[0];
            let logprobs = output.token_logprobs(&row).iter().enumerate();
            found.extend(
                logprobs.map(|(i, &logprob)| (logprob, output.token_top(&row, i).collect())),
            );
        }

        let expected = logits.chunks_exact(vocabulary).zip(&tokens[1..]);
        assert_eq!(found.len(), expected.len());
        let scale = logits
            .iter()
            .fold(0f32, |most, logit| most.max(logit.abs()));
        for ((logprob, top), (logits, &token)) in found.into_iter().zip(expected) {
            let sum: f64 = logits.iter().map(|&logit| f64::from(logit).exp()).sum();
            assert_eq!(top.len(), 4);
            assert!(top.is_sorted_by(|a, b| a.1 >= b.1) && top[0].1 >= logprob);
            for (token, logprob) in top.into_iter().chain([(token, logprob)]) {
                let expected = f64::from(logits[token as usize]) - sum.ln();
                // As logits_of_every_tiny_model_are_the_golden_ones, for a logit and for the sum.
                assert!(
                    (f64::from(logprob) - expected).abs() <= 0.04 * f64::from(scale),
                    "{}: {logprob} {expected}",
                    path.display()
                );
            }
        }
    }
}

#[test]
fn raw_logprobs_are_those_before_bias_mask_and_penalties() {
    let mut engine = engine();
    let mut sampling = Sampling::greedy();
    sampling.bias = vec![(40, 30.0)];
    sampling.mask = vec![0xffff_fff0, u32::MAX];
    sampling.presence_penalty = 5.0;
    sampling.top_logprobs = 3;
    let mut found = Vec::new();
    for raw_logprobs in [false, true] {
        sampling.raw_logprobs = raw_logprobs;
        let sequence = engine.create_sequence().unwrap();
        let row = Row::tokens(&sequence, &[1, 2, 3])
            .sample(&sampling)
            .logits_last();
        let output = run(&mut engine, row);

        let row = output.rows()[0];
        assert_eq!(row.token, Some(40));
        let logits = output.logits(&row);
        let sum: f64 = logits.iter().map(|&logit| f64::from(logit).exp()).sum();
        let top: Vec<(Token, f32)> = output.top(&row).collect();
        assert_eq!(top.len(), 3);
        if raw_logprobs {
            assert_eq!(top[0].0, argmax(logits));
            for (token, logprob) in top.into_iter().chain([(40, row.logprob)]) {
                let expected = f64::from(logits[token as usize]) - sum.ln();
                assert!((f64::from(logprob) - expected).abs() < 1e-4);
            }
        }
        found.push(row.logprob);
    }
    assert!(found[0] > -0.01 && found[1] < -1.0, "{found:?}");
}

#[test]
fn a_row_without_a_logprob_has_the_same_token() {
    let mut engine = engine();
    for temperature in [0.0, 0.7, 1.0] {
        let mut sampling = Sampling::greedy();
        sampling.temperature = temperature;
        sampling.seed = 9;
        let mut sampled = Vec::new();
        for no_logprob in [false, true] {
            sampling.no_logprob = no_logprob;
            let sequence = engine.create_sequence().unwrap();
            let output = run(
                &mut engine,
                Row::tokens(&sequence, &[1, 2, 3]).sample(&sampling),
            );
            let row = output.rows()[0];
            assert_eq!(row.logprob == 0.0, no_logprob);
            sampled.push(row.token.unwrap());
        }
        assert_eq!(sampled[0], sampled[1]);
    }
}

#[test]
fn greedy_draw_is_the_largest_logit_with_its_logprob() {
    let mut engine = engine();
    let sequence = engine.create_sequence().unwrap();
    let mut sampling = Sampling::greedy();
    sampling.top_logprobs = 8;
    let row = Row::tokens(&sequence, &[1, 2, 3])
        .sample(&sampling)
        .logits_last();
    let output = run(&mut engine, row);

    let row = output.rows()[0];
    assert_eq!(
        (row.status, row.first_position, row.token_count),
        (RowStatus::Ok, 0, 3)
    );
    let logits = output.logits(&row);
    assert_eq!(logits.len(), 64);
    assert_eq!(row.token, Some(argmax(logits)));
    let sum: f64 = logits.iter().map(|&logit| f64::from(logit).exp()).sum();
    let top: Vec<(Token, f32)> = output.top(&row).collect();
    assert_eq!(top.len(), 8);
    assert_eq!(top[0], (row.token.unwrap(), row.logprob));
    assert!(top.is_sorted_by(|a, b| a.1 >= b.1));
    for (token, logprob) in top {
        let expected = f64::from(logits[token as usize]) - sum.ln();
        assert!(
            (f64::from(logprob) - expected).abs() < 1e-4,
            "{token}: {logprob} {expected}"
        );
    }
}

#[test]
fn two_tickets_fly_and_a_third_waits() {
    let mut engine = engine();
    let sequence = engine.create_sequence().unwrap();
    let sampling = Sampling::greedy();
    let first = engine.submit(&Step::new().row(Row::tokens(&sequence, &[5, 6]).sample(&sampling)));
    let first = first.unwrap();
    let fed = Step::new().row(Row::feed_sampled(&sequence).sample(&sampling));
    let second = engine.submit(&fed).unwrap();
    assert_eq!(sequence.len().unwrap(), 3);
    assert_eq!(engine.in_flight().collect::<Vec<_>>(), [first, second]);
    assert_eq!(engine.info().unwrap().steps_in_flight, 2);

    let full = engine.submit(&fed).unwrap_err();
    assert_eq!(full.kind(), ErrorKind::QueueFull);
    assert!(full.is_retryable());
    assert_eq!(
        engine.wait(second).unwrap_err().kind(),
        ErrorKind::InvalidState
    );

    let one = engine.wait(first).unwrap().rows()[0].token.unwrap();
    let two = engine.wait(second).unwrap().rows()[0].token.unwrap();
    assert_eq!(engine.tokens(&sequence, 0, 3).unwrap(), [5, 6, one]);
    assert!(engine.wait(first).is_err(), "a ticket is waited for once");

    let other = engine.create_sequence().unwrap();
    assert_eq!(greedy(&mut engine, &other, &[5, 6], 2), [one, two]);
}

#[test]
fn prompt_in_pieces_is_the_prompt_as_a_whole() {
    let mut engine = engine();
    let prompt: Vec<Token> = (0..50).map(|i| (i * 7 + 3) % 64).collect();
    let whole = engine.create_sequence().unwrap();
    let pieces = engine.create_sequence().unwrap();
    let expected = run(&mut engine, Row::tokens(&whole, &prompt).logits_last());
    for piece in prompt[..49].chunks(11) {
        run(&mut engine, Row::tokens(&pieces, piece));
    }
    let output = run(
        &mut engine,
        Row::tokens(&pieces, &prompt[49..]).logits_last(),
    );

    let expected = expected.logits(&expected.rows()[0]);
    let found = output.logits(&output.rows()[0]);
    for (a, b) in expected.iter().zip(found) {
        assert!((a - b).abs() < 0.02, "{a} {b}");
    }
    assert_eq!(engine.tokens(&pieces, 0, 50).unwrap(), prompt);
}

#[test]
fn several_rows_a_step_do_what_they_do_alone() {
    let mut engine = engine();
    let prompts: [&[Token]; 3] = [&[1, 2, 3, 4, 5], &[9], &[60, 61]];
    let alone: Vec<Vec<Token>> = prompts
        .iter()
        .map(|prompt| {
            let sequence = engine.create_sequence().unwrap();
            greedy(&mut engine, &sequence, prompt, 1)
        })
        .collect();

    let sequences: Vec<Sequence> = prompts
        .iter()
        .map(|_| engine.create_sequence().unwrap())
        .collect();
    let sampling = Sampling::greedy();
    let mut step = Step::new();
    for (sequence, prompt) in sequences.iter().zip(prompts) {
        step.push(Row::tokens(sequence, prompt).sample(&sampling));
    }
    let ticket = engine.submit(&step).unwrap();
    let output = engine.wait(ticket).unwrap();
    let together: Vec<Vec<Token>> = output
        .rows()
        .iter()
        .map(|row| vec![row.token.unwrap()])
        .collect();
    assert_eq!(together, alone);
}

#[test]
fn fork_continues_like_its_origin_and_apart_from_it() {
    let mut engine = engine();
    let origin = engine.create_sequence().unwrap();
    run(&mut engine, Row::tokens(&origin, &[10, 20, 30]));
    let fork = engine.fork(&origin).unwrap();
    assert_eq!(fork.len().unwrap(), 3);

    let one = greedy(&mut engine, &origin, &[40], 5);
    let two = greedy(&mut engine, &fork, &[40], 5);
    assert_eq!(one, two);

    run(&mut engine, Row::tokens(&fork, &[1, 1, 1]));
    assert_eq!(origin.len().unwrap(), 8);
    assert_eq!(fork.len().unwrap(), 11);
    drop(origin);
    assert_eq!(engine.tokens(&fork, 0, 4).unwrap(), [10, 20, 30, 40]);
}

#[test]
fn truncate_goes_back_to_where_it_was() {
    let mut engine = engine();
    let sequence = engine.create_sequence().unwrap();
    let before = greedy(&mut engine, &sequence, &[7, 8, 9], 6);
    engine.truncate(&sequence, 3).unwrap();
    assert_eq!(sequence.len().unwrap(), 3);
    let after = greedy(&mut engine, &sequence, &before[..1], 5);
    assert_eq!(after, before[1..]);
    assert_eq!(
        engine.truncate(&sequence, 100).unwrap_err().kind(),
        ErrorKind::OutOfRange
    );
    engine.truncate(&sequence, 0).unwrap();
    assert!(sequence.is_empty().unwrap());
    assert_eq!(greedy(&mut engine, &sequence, &[7, 8, 9], 6), before);
}

#[test]
fn pages_with_keys_are_attached_and_cached() {
    let mut engine = Engine::new(&tiny(), &options().kv_tokens(4 * 64)).unwrap();
    let prompt: Vec<Token> = (0..150).map(|i| i % 60).collect();
    let keys = [[1; 32], [2; 32]];
    let page_counts = |engine: &Engine, free, cached, held| {
        let info = engine.info().unwrap();
        assert_eq!(info.kv_free_page_count, free);
        assert_eq!(info.kv_cached_page_count, cached);
        assert_eq!(info.kv_held_page_count, held);
    };
    let first = engine.create_sequence().unwrap();
    for chunk in prompt[..128].chunks(64) {
        run(&mut engine, Row::tokens(&first, chunk));
    }
    let expected = greedy(&mut engine, &first, &prompt[128..], 3);
    engine.publish(&first, 0, &keys).unwrap();
    let error = engine.publish(&first, 2, &[[3; 32]]).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::OutOfRange);
    page_counts(&engine, 1, 0, 3);
    drop(first);
    page_counts(&engine, 4, 2, 0);

    let second = engine.create_sequence().unwrap();
    assert_eq!(engine.attach(&second, &prompt, &keys).unwrap(), 128);
    page_counts(&engine, 2, 0, 2);
    assert_eq!(engine.tokens(&second, 0, 128).unwrap(), prompt[..128]);
    assert_eq!(greedy(&mut engine, &second, &prompt[128..], 3), expected);
    let error = engine.attach(&second, &prompt, &keys).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::InvalidState);

    let empty = engine.create_sequence().unwrap();
    assert_eq!(engine.attach(&empty, &[], &[]).unwrap(), 0);
    let unknown = [[9; 32], keys[0]];
    assert_eq!(engine.attach(&empty, &prompt, &unknown).unwrap(), 0);
    let error = engine.attach(&empty, &prompt[..100], &keys).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::InvalidArgument);
}

#[test]
fn saved_sequences_continue_after_they_are_restored() {
    let model = tiny();
    let mut engine = Engine::new(&model, &options().kv_tokens(4 * 64)).unwrap();
    let page_bytes = 64 * engine.info().unwrap().kv_token_bytes as usize;
    let memory = || model.context().alloc_pinned::<u8>(2 * page_bytes).unwrap();
    let prompt: Vec<Token> = (0..100).map(|i| i % 60).collect();
    let sequence = engine.create_sequence().unwrap();
    run(&mut engine, Row::tokens(&sequence, &prompt[..64]));
    let step = Step::new().row(Row::tokens(&sequence, &prompt[64..]));
    let ticket = engine.submit(&step).unwrap();

    let saved = engine.save(&sequence, memory()).unwrap();
    engine.wait(ticket).unwrap();
    let expected = greedy(&mut engine, &sequence, &[5], 4);
    drop(sequence);
    let saved = saved.wait().unwrap();
    let sequence = engine.create_sequence().unwrap();
    let restored = engine.restore(&sequence, &prompt, saved).unwrap();
    assert_eq!(engine.tokens(&sequence, 0, 100).unwrap(), prompt);
    assert_eq!(greedy(&mut engine, &sequence, &[5], 4), expected);
    assert!(restored.is_done().unwrap());

    let small = model.context().alloc_pinned::<u8>(page_bytes).unwrap();
    let error = engine.save(&sequence, small).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::BufferTooSmall);
    let error = engine.restore(&sequence, &prompt, memory()).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::InvalidState);

    // Copies outlive their sequence and their engine, and can be forgotten.
    let copies = [
        engine.save(&sequence, memory()).unwrap(),
        engine.save(&sequence, memory()).unwrap(),
    ];
    drop(sequence);
    drop(engine);
    let [kept, forgotten] = copies;
    forget::forget(forgotten);
    assert!(kept.wait().unwrap().iter().any(|&byte| byte != 0));
}

#[test]
fn copies_of_sequences_end_in_any_order_on_any_thread_while_the_engine_runs() {
    let model = tiny();
    let mut engine = Engine::new(&model, &options().kv_tokens(8 * 64)).unwrap();
    let page_bytes = 64 * engine.info().unwrap().kv_token_bytes as usize;
    let memory = || model.context().alloc_pinned::<u8>(2 * page_bytes).unwrap();
    let prompt: Vec<Token> = (0..100).map(|i| i % 60).collect();
    let sequence = engine.create_sequence().unwrap();
    run(&mut engine, Row::tokens(&sequence, &prompt[..64]));
    run(&mut engine, Row::tokens(&sequence, &prompt[64..]));

    let copies: Vec<_> = (0..6)
        .map(|_| engine.save(&sequence, memory()).unwrap())
        .collect();
    let expected = greedy(&mut engine, &sequence, &[5], 4);
    let context = model.context().clone();
    let saved: Vec<PinnedBuffer<u8>> = std::thread::scope(|scope| {
        let waits = copies.into_iter().rev();
        let waits: Vec<_> = waits.map(|copy| scope.spawn(|| copy.wait())).collect();
        scope.spawn(move || (0..20).for_each(|_| drop(context.alloc_pinned::<u8>(page_bytes))));
        let other = engine.create_sequence().unwrap();
        greedy(&mut engine, &other, &[7, 8], 20);
        let ends = waits.into_iter().map(|wait| wait.join().unwrap().unwrap());
        ends.collect()
    });
    drop(sequence);
    assert!(saved.iter().all(|memory| memory[..] == saved[0][..]));

    // Memory that is dropped or forgotten while it is copied from is not used by others before the end.
    for (number, memory) in saved.into_iter().enumerate() {
        let sequence = engine.create_sequence().unwrap();
        let copy = engine.restore(&sequence, &prompt, memory).unwrap();
        match number % 3 {
            0 => drop(copy),
            1 => forget::forget(copy),
            _ => drop(std::thread::spawn(|| copy.wait().unwrap()).join().unwrap()),
        }
        let mut others = model.context().alloc_pinned::<u8>(2 * page_bytes).unwrap();
        others.fill(0xff);
        assert_eq!(greedy(&mut engine, &sequence, &[5], 4), expected);
    }
}

#[test]
fn copies_outlive_the_engine_the_model_and_other_copies() {
    let context = host();
    let gguf = Gguf::open(models::tiny_path()).unwrap();
    let model = Model::load(&context, &gguf).unwrap();
    let mut engine = Engine::new(&model, &options()).unwrap();
    let page_bytes = 64 * engine.info().unwrap().kv_token_bytes as usize;
    let memory = || context.alloc_pinned::<u8>(page_bytes).unwrap();
    let sequence = engine.create_sequence().unwrap();
    run(&mut engine, Row::tokens(&sequence, &[1, 2, 3]));
    let first = engine.save(&sequence, memory()).unwrap();
    let second = engine.save(&sequence, memory()).unwrap();
    let saved = first.wait().unwrap();
    let restored = engine.create_sequence().unwrap();
    let third = engine.restore(&restored, &[1, 2, 3], saved).unwrap();

    drop(model);
    drop((sequence, restored));
    drop(second);
    drop(engine);
    assert!(third.wait().unwrap().iter().any(|&byte| byte != 0));

    assert!(context.ledger().unwrap().is_empty());
}

#[test]
fn calls_on_sequences_act_after_the_steps_in_flight() {
    let mut engine = engine();
    let sequence = engine.create_sequence().unwrap();
    let sampling = Sampling::greedy();
    let step = Step::new().row(Row::tokens(&sequence, &[3, 4, 5]).sample(&sampling));
    let ticket = engine.submit(&step).unwrap();
    let fork = engine.fork(&sequence).unwrap();
    engine.truncate(&sequence, 1).unwrap();
    assert_eq!((sequence.len().unwrap(), fork.len().unwrap()), (1, 3));
    engine.wait(ticket).unwrap();
    let expected = engine.create_sequence().unwrap();
    let expected = greedy(&mut engine, &expected, &[3, 4, 5, 6], 3);
    assert_eq!(greedy(&mut engine, &fork, &[6], 3), expected);
    assert_eq!(greedy(&mut engine, &sequence, &[4, 5, 6], 3), expected);
}

#[test]
fn draws_repeat_with_their_seed() {
    let mut engine = engine();
    let mut draw = |seed| {
        let sequence = engine.create_sequence().unwrap();
        let sampling = Sampling::with_temperature(1.5, seed);
        let mut next = vec![1, 2];
        let mut tokens = Vec::new();
        for _ in 0..20 {
            let output = run(&mut engine, Row::tokens(&sequence, &next).sample(&sampling));
            next = vec![output.rows()[0].token.unwrap()];
            tokens.push(next[0]);
        }
        tokens
    };
    assert_eq!(draw(1), draw(1));
    assert_eq!(draw(0), draw(0));
    assert_ne!(draw(1), draw(2));
}

#[test]
fn bias_and_mask_decide_what_may_be_drawn() {
    let mut engine = engine();
    let sequence = engine.create_sequence().unwrap();
    let best = greedy(&mut engine, &sequence, &[1, 2, 3], 1)[0];
    engine.truncate(&sequence, 2).unwrap();

    let mut forbids = Sampling::greedy();
    forbids.bias = vec![(best, f32::NEG_INFINITY)];
    let mut favours = Sampling::greedy();
    favours.bias = vec![(best ^ 1, 0.0), (33, 1e6)];
    let mut masks = Sampling::greedy();
    masks.mask = vec![1 << 17, 0];
    for (sampling, expected) in [(&favours, Some(33)), (&masks, Some(17)), (&forbids, None)] {
        let output = run(&mut engine, Row::tokens(&sequence, &[3]).sample(sampling));
        let token = output.rows()[0].token.unwrap();
        match expected {
            Some(expected) => assert_eq!(token, expected),
            None => assert_ne!(token, best),
        }
        engine.truncate(&sequence, 2).unwrap();
    }

    // Several rows with their own bias in one step.
    let other = engine.create_sequence().unwrap();
    let step = Step::new()
        .row(Row::tokens(&sequence, &[3]).sample(&favours))
        .row(Row::tokens(&other, &[3]).sample(&forbids));
    let ticket = engine.submit(&step).unwrap();
    let output = engine.wait(ticket).unwrap();
    assert_eq!(output.rows()[0].token, Some(33));
    assert_ne!(output.rows()[1].token, Some(best));
}

fn late_step<'a>(sequence: &'a Sequence, sampling: &'a Sampling) -> Step<'a> {
    Step::new().row(Row::tokens(sequence, &[3, 4, 5]).sample_late(sampling))
}

#[test]
fn late_rows_are_sampled_with_their_mask_or_held() {
    let mut engine = engine();
    let sequence = engine.create_sequence().unwrap();
    let sampling = Sampling::greedy();
    let words = (engine.model().info().vocabulary_size as usize).div_ceil(32);
    let mut mask = vec![0; words];
    mask[1] = 1 << 5;

    let held = engine.submit(&late_step(&sequence, &sampling)).unwrap();
    let early = engine.wait(held).unwrap_err();
    assert_eq!(early.kind(), ErrorKind::InvalidState);
    for wrong in [&[][..], &[LateRow::Sample(&mask[1..])], &[LateRow::Hold; 2]] {
        let error = engine.sample(held, wrong).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidArgument);
    }
    engine.sample(held, &[LateRow::Hold]).unwrap();
    assert!(sequence.is_empty().unwrap());
    let masked = engine.submit(&late_step(&sequence, &sampling)).unwrap();
    let row = engine.wait(held).unwrap().rows()[0];
    assert_eq!((row.status, row.token), (RowStatus::Held, None));
    engine.sample(masked, &[LateRow::Sample(&mask)]).unwrap();
    let again = engine.sample(masked, &[LateRow::Hold]).unwrap_err();
    assert_eq!(again.kind(), ErrorKind::InvalidState);
    assert_eq!(engine.wait(masked).unwrap().rows()[0].token, Some(37));

    let next = Step::new().row(Row::feed_sampled(&sequence).sample_late(&sampling));
    let next = engine.submit(&next).unwrap();
    engine.sample(next, &[LateRow::Sample(&[])]).unwrap();
    let token = engine.wait(next).unwrap().rows()[0].token;
    let whole = engine.create_sequence().unwrap();
    let expected = greedy(&mut engine, &whole, &[3, 4, 5, 37], 1);
    assert_eq!(token, Some(expected[0]));
}

#[test]
fn forgotten_late_rows_are_held() {
    let mut engine = engine();
    let sequence = engine.create_sequence().unwrap();
    let sampling = Sampling::greedy();
    let _ticket = engine.submit(&late_step(&sequence, &sampling)).unwrap();
    engine.drain().unwrap();
    assert!(sequence.is_empty().unwrap());
    let ticket = engine.submit(&late_step(&sequence, &sampling)).unwrap();
    drop(sequence);
    engine.sample(ticket, &[LateRow::Sample(&[])]).unwrap();
    assert_eq!(
        engine.wait(ticket).unwrap().rows()[0].status,
        RowStatus::Held
    );
    let sequence = engine.create_sequence().unwrap();
    engine.submit(&late_step(&sequence, &sampling)).unwrap();
    drop(engine);
}

#[test]
fn row_that_fails_takes_its_sequence_back_and_skips_what_continues_it() {
    let mut engine = engine();
    let sequence = engine.create_sequence().unwrap();
    run(&mut engine, Row::tokens(&sequence, &[1, 2]));
    let mut nothing = Sampling::greedy();
    nothing.mask = vec![0, 0];
    let greedy = Sampling::greedy();
    let bad = engine.submit(&Step::new().row(Row::tokens(&sequence, &[3, 4]).sample(&nothing)));
    let next = engine.submit(&Step::new().row(Row::feed_sampled(&sequence).sample(&greedy)));

    let bad = engine.wait(bad.unwrap()).unwrap().rows()[0];
    let next = engine.wait(next.unwrap()).unwrap().rows()[0];
    assert_eq!((bad.status, bad.token), (RowStatus::EmptyMask, None));
    assert_eq!((next.status, next.token), (RowStatus::Skipped, None));
    assert_eq!(sequence.len().unwrap(), 2);
    run(&mut engine, Row::tokens(&sequence, &[3, 4]).sample(&greedy));
}

#[test]
fn wrong_steps_are_refused_and_change_nothing() {
    let mut engine = engine();
    let sequence = engine.create_sequence().unwrap();
    run(&mut engine, Row::tokens(&sequence, &[1]));
    let mut kind = |step: Step<'_>| engine.submit(&step).unwrap_err().kind();
    let long = vec![1; 65];
    let mut sampling = Sampling::greedy();
    sampling.top_logprobs = 9;
    let mut odd = Sampling::greedy();
    odd.top_p = 1.5;
    assert_eq!(kind(Step::new()), ErrorKind::InvalidArgument, "no rows");
    assert_eq!(
        kind(Step::new().row(Row::tokens(&sequence, &[]))),
        ErrorKind::InvalidArgument
    );
    assert_eq!(
        kind(Step::new().row(Row::tokens(&sequence, &[64]))),
        ErrorKind::OutOfRange
    );
    assert_eq!(
        kind(Step::new().row(Row::tokens(&sequence, &long))),
        ErrorKind::LimitExceeded
    );
    assert_eq!(
        kind(Step::new().row(Row::tokens(&sequence, &[1]).sample(&sampling))),
        ErrorKind::LimitExceeded
    );
    assert_eq!(
        kind(Step::new().row(Row::tokens(&sequence, &[1]).sample(&odd))),
        ErrorKind::InvalidArgument
    );
    let twice = Step::new()
        .row(Row::tokens(&sequence, &[1]))
        .row(Row::tokens(&sequence, &[2]));
    assert_eq!(kind(twice), ErrorKind::InvalidArgument);
    let past = Step::new().row(Row::tokens(&sequence, &[1, u32::MAX]));
    let error = engine.submit(&past).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::OutOfRange);
    assert_eq!(
        error.message(),
        "row 0: token 1 is 4294967295, past every vocabulary"
    );
    assert_eq!(sequence.len().unwrap(), 1);
    assert_eq!(engine.in_flight().len(), 0);
    assert_eq!(
        engine.tokens(&sequence, 0, 2).unwrap_err().kind(),
        ErrorKind::OutOfRange
    );
}

#[test]
fn limits_are_kept() {
    let model = tiny();
    let options = EngineOptions::new()
        .max_sequences(2)
        .max_sequence_tokens(10)
        .max_batch_tokens(8);
    let mut engine = Engine::new(&model, &options).unwrap();
    let info = engine.info().unwrap();
    assert_eq!(
        (
            info.max_sequences,
            info.max_sequence_tokens,
            info.max_batch_tokens
        ),
        (2, 10, 8)
    );
    let first = engine.create_sequence().unwrap();
    let second = engine.create_sequence().unwrap();
    let error = engine.create_sequence().unwrap_err();
    assert_eq!(error.kind(), ErrorKind::LimitExceeded);
    drop(second);
    engine.create_sequence().unwrap();

    run(&mut engine, Row::tokens(&first, &[1; 8]));
    let row = Row::tokens(&first, &[1; 3]);
    let error = engine.submit(&Step::new().row(row)).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::LimitExceeded);
    assert!(error.message().contains("10"), "{error}");
    run(&mut engine, Row::tokens(&first, &[1; 2]));
}

#[test]
fn too_few_pages_are_reported_with_both_numbers() {
    let options = EngineOptions::new()
        .max_sequences(3)
        .kv_tokens(128)
        .max_sequence_tokens(128);
    let mut engine = Engine::new(&tiny(), &options).unwrap();
    assert_eq!(engine.info().unwrap().kv_page_count, 2);
    let first = engine.create_sequence().unwrap();
    let second = engine.create_sequence().unwrap();
    run(&mut engine, Row::tokens(&first, &[1; 65]));
    let error = engine
        .submit(&Step::new().row(Row::tokens(&second, &[1])))
        .unwrap_err();
    assert_eq!(error.kind(), ErrorKind::OutOfPages);
    assert!(
        error.message().contains('1') && error.message().contains('0'),
        "{error}"
    );
    assert!(second.is_empty().unwrap());
    drop(first);
    run(&mut engine, Row::tokens(&second, &[1]));
}

#[test]
fn sequences_of_another_engine_are_refused() {
    let (mut engine, mut other) = (engine(), engine());
    let foreign = other.create_sequence().unwrap();
    let invalid = ErrorKind::InvalidArgument;
    assert_eq!(
        engine
            .submit(&Step::new().row(Row::tokens(&foreign, &[1])))
            .unwrap_err()
            .kind(),
        invalid
    );
    assert_eq!(engine.fork(&foreign).unwrap_err().kind(), invalid);
    assert_eq!(engine.truncate(&foreign, 0).unwrap_err().kind(), invalid);
    let key = [[0; 32]];
    let context = engine.model().context().clone();
    let memory = || context.alloc_pinned::<u8>(64).unwrap();
    assert_eq!(engine.save(&foreign, memory()).unwrap_err().kind(), invalid);
    assert_eq!(
        engine.restore(&foreign, &[], memory()).unwrap_err().kind(),
        invalid
    );
    assert_eq!(
        engine.publish(&foreign, 0, &key).unwrap_err().kind(),
        invalid
    );
    assert_eq!(
        engine.attach(&foreign, &[0; 64], &key).unwrap_err().kind(),
        invalid
    );
    assert_eq!(engine.tokens(&foreign, 0, 0).unwrap_err().kind(), invalid);
}

#[test]
fn waiting_with_a_timeout_leaves_the_step_in_flight() {
    let mut engine = engine();
    let sequence = engine.create_sequence().unwrap();
    let ticket = engine
        .submit(&Step::new().row(Row::tokens(&sequence, &[1; 64])))
        .unwrap();
    let mut output = StepOutput::default();
    loop {
        match engine.wait_into(ticket, Some(Duration::ZERO), &mut output) {
            Ok(()) => break,
            Err(error) => {
                assert_eq!(error.kind(), ErrorKind::Timeout);
                assert_eq!(engine.in_flight().collect::<Vec<_>>(), [ticket]);
            }
        }
    }
    assert_eq!(output.rows().len(), 1);
    assert!(output.device_ns > 0);
}

#[test]
fn drain_completes_what_was_not_waited_for() {
    let mut engine = engine();
    let sequence = engine.create_sequence().unwrap();
    engine
        .submit(&Step::new().row(Row::tokens(&sequence, &[1, 2, 3])))
        .unwrap();
    engine
        .submit(&Step::new().row(Row::tokens(&sequence, &[4])))
        .unwrap();
    engine.drain().unwrap();
    assert_eq!(engine.in_flight().len(), 0);
    assert_eq!(sequence.len().unwrap(), 4);
    engine
        .submit(&Step::new().row(Row::tokens(&sequence, &[5])))
        .unwrap();
    engine.close().unwrap();
}

#[test]
fn sequences_outlive_their_engine_and_everything_is_given_back() {
    let model = tiny();
    let context = model.context().clone();
    let mut engine = Engine::new(&model, &options()).unwrap();
    let sequence = engine.create_sequence().unwrap();
    engine
        .submit(&Step::new().row(Row::tokens(&sequence, &[1, 2, 3])))
        .unwrap();
    drop(engine);
    drop(model);
    assert_eq!(sequence.len().unwrap(), 3);
    drop(sequence);
    assert!(context.ledger().unwrap().is_empty());
}

#[test]
fn forgotten_tickets_outputs_and_sequences_hurt_nobody() {
    let mut engine = engine();
    let forgotten = engine.create_sequence().unwrap();
    let tokens = vec![1, 2, 3];
    let sampling = Sampling::greedy();
    let row = Row::tokens(&forgotten, &tokens).sample(&sampling);
    let _ticket = engine.submit(&Step::new().row(row)).unwrap();
    // Submitting has copied: what it pointed to may go while the step is in flight.
    drop((tokens, sampling));
    forget::forget(forgotten);

    let other = engine.create_sequence().unwrap();
    let ticket = engine
        .submit(&Step::new().row(Row::tokens(&other, &[4])))
        .unwrap();
    assert_eq!(
        engine.wait(ticket).unwrap_err().kind(),
        ErrorKind::InvalidState
    );
    engine.drain().unwrap();
    assert_eq!(engine.info().unwrap().sequence_count, 2);
    drop(engine);
}

#[test]
fn sequences_end_on_any_thread_while_steps_fly() {
    let mut engine = engine();
    for _ in 0..20 {
        let sequence = engine.create_sequence().unwrap();
        let ticket = engine
            .submit(&Step::new().row(Row::tokens(&sequence, &[1; 32])))
            .unwrap();
        let ended = std::thread::spawn(move || drop(sequence));
        engine.wait(ticket).unwrap();
        ended.join().unwrap();
    }
    let info = engine.info().unwrap();
    assert_eq!(
        (info.sequence_count, info.kv_free_page_count),
        (0, info.kv_page_count)
    );
}

#[test]
fn kv_types_run_close_to_f16_or_say_why_not() {
    let model = tiny();
    let mut expected = Vec::new();
    for kv_type in [KvType::F16, KvType::Q8_0, KvType::Fp8E4m3] {
        let mut engine = Engine::new(&model, &options().kv_type(kv_type)).unwrap();
        assert_eq!(engine.info().unwrap().kv_type, kv_type);
        let sequence = engine.create_sequence().unwrap();
        let tokens: Vec<Token> = (0..40).collect();
        let output = run(&mut engine, Row::tokens(&sequence, &tokens).logits_last());
        let logits = output.logits(&output.rows()[0]);
        if expected.is_empty() {
            expected = logits.to_vec();
        }
        let scale = expected
            .iter()
            .fold(0f32, |most, logit| most.max(logit.abs()));
        let worst = logits
            .iter()
            .zip(&expected)
            .fold(0f32, |most, (a, b)| most.max((a - b).abs()));
        assert!(worst < 0.1 * scale, "{kv_type:?}: {worst} of {scale}");
    }
    assert!(Engine::new(&model, &options().kv_type(KvType::Unknown(77))).is_err());
    // Its heads have 32 numbers, not a multiple of 64.
    let error = Engine::new(&model, &options().kv_type(KvType::Int10)).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unsupported);
    assert!(
        error
            .to_string()
            .contains("KV type int10 cannot hold heads of 32 elements"),
        "{error}"
    );
}
