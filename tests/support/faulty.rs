//! An engine that fails.

use worker_cuda::generate::service::{
    EngineLimits, ModelEngine, RowSource, StepEngine, StepResults,
};
use worker_cuda::scheduler::{Plan, RequestId};
use worker_cuda::{Error, ErrorKind, LateRow, TokenFeatures};

/// Reports errors in place of the engine's results.
pub struct Faulty {
    pub engine: ModelEngine,
    /// Steps that end well before it, and what it is; the last is the next.
    pub faults: Vec<(u32, ErrorKind)>,
}

impl StepEngine for Faulty {
    fn limits(&self) -> EngineLimits {
        self.engine.limits()
    }

    fn submit(&mut self, plan: &Plan, rows: &dyn RowSource) -> worker_cuda::Result<()> {
        self.engine.submit(plan, rows)
    }

    fn lost_saves(&mut self) -> Vec<RequestId> {
        self.engine.lost_saves()
    }

    fn sample(&mut self, rows: &[LateRow<'_>]) -> worker_cuda::Result<()> {
        self.engine.sample(rows)
    }

    fn wait(&mut self, results: &mut StepResults) -> worker_cuda::Result<()> {
        match self.faults.last_mut() {
            Some(&mut (0, kind)) => {
                self.faults.pop();
                Err(Error::new(kind, "injected"))
            }
            Some((left, _)) => {
                *left -= 1;
                self.engine.wait(results)
            }
            None => self.engine.wait(results),
        }
    }

    fn features(&self, sequence: u32) -> Option<TokenFeatures> {
        self.engine.features(sequence)
    }

    fn reopen(&mut self) -> worker_cuda::Result<()> {
        self.engine.reopen()
    }
}
