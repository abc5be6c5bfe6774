//! The command line `worker-orcd`.

use worker_cuda as _;

fn main() {}
