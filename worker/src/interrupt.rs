//! Ctrl-C and SIGTERM: the first cancels the running work, the second ends the process. A server decides
//! itself what each of them does.

use std::process::exit;
use std::sync::{Mutex, PoisonError};

use nix::sys::signal::{SigHandler, Signal, signal};
use worker_cuda::CancelHandle;
use worker_cuda::generate::CancelFlag;

use crate::failure::{Failure, Outcome};
use crate::serve::StopHandle;

#[derive(Default)]
struct State {
    load: Option<CancelHandle>,
    generation: Option<CancelFlag>,
    server: Option<StopHandle>,
    interrupted: bool,
}

static STATE: Mutex<State> = Mutex::new(State {
    load: None,
    generation: None,
    server: None,
    interrupted: false,
});

/// Installs the handler; call once. SIGHUP does the same, unless it is ignored, as `nohup` has it.
pub fn install() -> Outcome {
    // SAFETY: an ignored signal runs no code.
    let ignore_hangup = || unsafe { signal(Signal::SIGHUP, SigHandler::SigIgn) };
    let before = ignore_hangup();
    ctrlc::set_handler(signalled)
        .map_err(|error| Failure::new(format!("cannot handle Ctrl-C: {error}")))?;
    if matches!(before, Ok(SigHandler::SigIgn)) {
        let _ = ignore_hangup(); // it has succeeded before
    }
    Ok(())
}

fn signalled() {
    let mut state = STATE.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(server) = &state.server {
        return server.stop();
    }
    let load = state.load.as_ref().map(CancelHandle::trigger);
    let generation = state.generation.as_ref().map(CancelFlag::set);
    if state.interrupted || (load.is_none() && generation.is_none()) {
        exit(130);
    }
    state.interrupted = true;
}

/// SIGHUP, which no longer does what Ctrl-C does.
#[cfg(feature = "tls")]
pub struct Hangup(nix::sys::signal::SigSet);

#[cfg(feature = "tls")]
impl Hangup {
    /// Blocks it. Call this before threads are started: they inherit it.
    pub fn block() -> Outcome<Self> {
        let mut signals = nix::sys::signal::SigSet::empty();
        signals.add(nix::sys::signal::Signal::SIGHUP);
        let failed = |error| Failure::new(format!("cannot block SIGHUP: {error}"));
        signals.thread_block().map_err(failed)?;
        Ok(Self(signals))
    }

    /// Does this for each one.
    pub fn each(self, work: impl Fn() + Send + 'static) {
        std::thread::spawn(move || {
            while self.0.wait().is_ok() {
                work();
            }
        });
    }
}

/// From now on Ctrl-C cancels this load.
pub fn watch_load(cancel: &CancelHandle) {
    set(|state| state.load = Some(cancel.clone()));
}

/// From now on Ctrl-C ends the process immediately. An error if it was pressed during the load, which may have ended
/// well all the same: the last part of a load cannot be cancelled.
pub fn end_load() -> Outcome {
    match set(|_| ()).interrupted {
        true => Err(Failure::interrupted()),
        false => Ok(()),
    }
}

/// Returns the flag of one generation; Ctrl-C sets it from now on.
pub fn watch_generation() -> CancelFlag {
    let flag = CancelFlag::default();
    set(|state| state.generation = Some(flag.clone()));
    flag
}

/// From now on Ctrl-C ends the process immediately.
pub fn watch_nothing() {
    set(|_| ());
}

/// From now on Ctrl-C stops this server.
pub fn watch_server(server: StopHandle) {
    set(|state| state.server = Some(server));
}

/// Returns the former state.
fn set(watch: impl FnOnce(&mut State)) -> State {
    let mut state = State::default();
    watch(&mut state);
    let mut current = STATE.lock().unwrap_or_else(PoisonError::into_inner);
    std::mem::replace(&mut *current, state)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_signal_counts_although_the_load_has_ended_well() {
        let cancel = CancelHandle::new().expect("a handle");
        watch_load(&cancel);
        end_load().expect("no signal");
        watch_load(&cancel);
        signalled();
        assert!(end_load().expect_err("a signal").is_interrupted());
        watch_load(&cancel);
        end_load().expect("the signal was handled");
    }
}
