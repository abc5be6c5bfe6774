//! `vram`: shows device memory, checks its residency, finds leaks, computes digests.

use std::fs::File;
use std::io::{Read, Write};
use std::path::{Path, PathBuf};

use serde_json::{Value, json};
use worker_cuda::{CudaContext, ElementType, Gguf, Model, Purpose, Residency, join_digest_pieces};

use crate::failure::{Failure, Outcome, one_line};
use crate::input::print_json;
use crate::load;
use crate::options::DeviceArgs;
use crate::size;

#[derive(clap::Args)]
pub struct Args {
    #[command(subcommand)]
    command: Option<Command>,
    #[command(flatten)]
    device: DeviceArgs,
    /// Print one JSON object
    #[arg(long, global = true)]
    json: bool,
}

#[derive(clap::Subcommand)]
enum Command {
    /// Writes, reads and digests blocks of several sizes and checks that they reside on the device
    Check,
    /// Allocates memory, runs kernels and, with --model, loads a model; releases all and lists leaks
    Leaks {
        /// A GGUF file to load and unload
        #[arg(long, value_name = "FILE")]
        model: Option<PathBuf>,
    },
    /// Computes the BLAKE3 digest of a file on the device
    Digest {
        /// The file
        #[arg(value_name = "FILE")]
        file: PathBuf,
    },
}

/// Sizes of the blocks that `check` writes.
const CHECKED_BYTES: [usize; 5] = [1, 4097, 1 << 20, (16 << 20) + 3, 64 << 20];
/// Bytes of a file per upload; a multiple of 1 MiB.
const PIECE_BYTES: usize = 64 << 20;
const MIB: usize = 1 << 20;

pub fn run(args: Args) -> Outcome {
    let context = load::context(&args.device)?;
    match &args.command {
        None => show(&context, args.json),
        Some(Command::Check) => check(&context, args.json),
        Some(Command::Leaks { model }) => leaks(&context, model.as_deref(), args.json),
        Some(Command::Digest { file }) => digest(&context, file, args.json),
    }
}

fn gib(bytes: u64) -> f64 {
    bytes as f64 / f64::from(1 << 30)
}

fn hex(digest: &[u8; 32]) -> String {
    digest.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn show(context: &CudaContext, as_json: bool) -> Outcome {
    let (info, memory) = (context.info()?, context.memory(Purpose::Any)?);
    let held = memory
        .device_total_bytes
        .saturating_sub(memory.device_free_bytes);
    if as_json {
        return print_json(&json!({
            "backend": info.backend.to_string(),
            "ordinal": info.ordinal,
            "total_bytes": memory.device_total_bytes,
            "free_bytes": memory.device_free_bytes,
            "used_bytes": held,
            "budget_bytes": memory.budget_bytes,
        }));
    }
    let mut out = std::io::stdout().lock();
    writeln!(
        out,
        "{}:{}  {:.2} GiB, {:.2} GiB free, {:.2} GiB held by all processes",
        info.backend,
        info.ordinal,
        gib(memory.device_total_bytes),
        gib(memory.device_free_bytes),
        gib(held)
    )?;
    Ok(())
}

/// Compares the device's digest of one block with the CPU's.
fn check_block(device: &CudaContext, host: &CudaContext, bytes: usize) -> Outcome {
    let pattern: Vec<u8> = (0..bytes).map(|i| (i * 31 + i / 251) as u8).collect();
    let block = device.alloc_from(&pattern)?;
    let read = block.to_vec()?;
    let digests = [
        block.digest(0..bytes)?,
        host.alloc_from(&pattern)?.digest(0..bytes)?,
    ];
    if read != pattern || digests[0] != digests[1] {
        return Err(Failure::new(format!(
            "a block of {bytes} bytes differs from what was written: digest {}, expected {}",
            hex(&digests[0]),
            hex(&digests[1])
        )));
    }
    Ok(())
}

fn check(context: &CudaContext, as_json: bool) -> Outcome {
    context.enforce_vram_only_policy()?;
    let host = CudaContext::host()?;
    for bytes in CHECKED_BYTES {
        check_block(context, &host, bytes)?;
    }
    let blocks = CHECKED_BYTES
        .iter()
        .map(|bytes| context.alloc::<u8>(*bytes))
        .collect::<Result<Vec<_>, _>>()?;
    let residency = context.check_residency()?;
    drop(blocks);
    let info = context.info()?;
    if as_json {
        return print_json(&residency_json(&info.backend.to_string(), &residency));
    }
    let mut out = std::io::stdout().lock();
    writeln!(
        out,
        "{}: {} blocks of 1 byte to {} MiB written, read and digested; all {} allocations reside on the device",
        info.backend,
        CHECKED_BYTES.len(),
        CHECKED_BYTES[CHECKED_BYTES.len() - 1] / MIB,
        residency.checked_count
    )?;
    Ok(())
}

fn residency_json(backend: &str, residency: &Residency) -> Value {
    json!({
        "backend": backend,
        "blocks": CHECKED_BYTES,
        "checked_count": residency.checked_count,
        "nonresident_count": residency.nonresident_count,
        "managed_count": residency.managed_count,
    })
}

/// Allocates and releases memory of each kind.
fn use_and_give_back(context: &CudaContext, model: Option<&Path>) -> Outcome {
    let mut x = context.alloc::<f32>(1 << 16)?;
    let y = context.alloc_from(&vec![1.0f32; 1 << 16])?;
    let args = [(&y).into(), (&mut x).into(), (1u64 << 16).into()];
    context.run_builtin("reduce_sum", ElementType::F32, &args, None)?;
    context.synchronize()?;
    if let Some(path) = model {
        let gguf: Gguf = load::gguf(path)?;
        drop(Model::builder(context, &gguf).load()?);
    }
    Ok(())
}

fn leaks(context: &CudaContext, model: Option<&Path>, as_json: bool) -> Outcome {
    use_and_give_back(context, model)?;
    let (left, memory) = (context.ledger()?, context.memory(Purpose::Any)?);
    if as_json {
        let rows: Vec<Value> = left
            .iter()
            .map(|row| {
                json!({
                    "bytes": row.bytes,
                    "purpose": format!("{:?}", row.purpose).to_lowercase(),
                    "tag": row.tag,
                    "sequence_number": row.sequence_number,
                })
            })
            .collect();
        print_json(&json!({
            "leaks": rows,
            "allocations": memory.total_allocation_count,
            "peak_bytes": memory.peak_bytes,
        }))?;
    } else {
        let mut out = std::io::stdout().lock();
        for row in &left {
            let tag = one_line(&row.tag);
            writeln!(
                out,
                "#{} '{tag}' holds {}",
                row.sequence_number,
                size::exact(row.bytes)
            )?;
        }
        writeln!(
            out,
            "{} allocations, peak {}, {} leaked",
            memory.total_allocation_count,
            size::exact(memory.peak_bytes),
            left.len()
        )?;
    }
    match left.len() {
        0 => Ok(()),
        count => Err(Failure::new(format!("{count} allocations leaked"))),
    }
}

/// Reads until `piece` is full or the file ends.
fn read_piece(file: &mut File, piece: &mut [u8]) -> std::io::Result<usize> {
    let mut filled = 0;
    while filled < piece.len() {
        match file.read(&mut piece[filled..])? {
            0 => break,
            count => filled += count,
        }
    }
    Ok(filled)
}

fn file_digest(context: &CudaContext, path: &Path) -> Outcome<([u8; 32], u64)> {
    let failed = |error: std::io::Error| Failure::file(path, &error);
    let mut file = File::open(path).map_err(failed)?;
    let size = file.metadata().map_err(failed)?.len() as usize;
    let mut piece = vec![0u8; PIECE_BYTES.min(size.max(1))];
    let mut block = context.alloc::<u8>(piece.len())?;
    let (mut values, mut done) = (Vec::new(), 0usize);
    loop {
        let count = read_piece(&mut file, &mut piece).map_err(failed)?;
        if done == 0 && count <= MIB {
            // At most one MiB: there are no pieces to join.
            if count == 0 {
                return Ok((EMPTY, 0));
            }
            block.write_at(0, &piece[..count])?;
            return Ok((block.digest(0..count)?, count as u64));
        }
        if count == 0 {
            break;
        }
        block.write_at(0, &piece[..count])?;
        values.extend(block.digest_pieces(0..count, (done / MIB) as u64)?);
        done += count;
    }
    Ok((join_digest_pieces(&values)?, done as u64))
}

/// BLAKE3 of no bytes; a device block has at least one.
const EMPTY: [u8; 32] = [
    0xaf, 0x13, 0x49, 0xb9, 0xf5, 0xf9, 0xa1, 0xa6, 0xa0, 0x40, 0x4d, 0xea, 0x36, 0xdc, 0xc9, 0x49,
    0x9b, 0xcb, 0x25, 0xc9, 0xad, 0xc1, 0x12, 0xb7, 0xcc, 0x9a, 0x93, 0xca, 0xe4, 0x1f, 0x32, 0x62,
];

fn digest(context: &CudaContext, path: &Path, as_json: bool) -> Outcome {
    let (digest, bytes) = file_digest(context, path)?;
    let digest = hex(&digest);
    if as_json {
        let backend = context.info()?.backend.to_string();
        let file = path.display().to_string();
        return print_json(
            &json!({ "blake3": digest, "bytes": bytes, "file": file, "backend": backend }),
        );
    }
    writeln!(
        std::io::stdout().lock(),
        "{digest}  {}",
        one_line(&path.display().to_string())
    )?;
    Ok(())
}
