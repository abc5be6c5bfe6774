//! `inspect`: shows the contents of a GGUF file.

use std::collections::BTreeMap;
use std::io::Write;
use std::path::PathBuf;

use serde_json::{Map, Value as Json, json};
use worker_cuda::gguf::{Array, Value, ValueType, tensor_type};
use worker_cuda::{Backend, CudaContext, Gguf, devices};

use crate::failure::{Outcome, one_line};
use crate::input::print_json;
use crate::load;
use crate::machine::{self, Machine};
use crate::size;

#[derive(clap::Args)]
pub struct Args {
    /// The GGUF file
    #[arg(value_name = "FILE")]
    file: PathBuf,
    /// Show the BLAKE3 digest of each tensor's bytes in the file
    #[arg(long)]
    digests: bool,
    /// Print one JSON object, with complete arrays
    #[arg(long)]
    json: bool,
}

/// Elements of an array and characters of a text that the listing shows.
const SHOWN_ELEMENTS: u64 = 8;
const SHOWN_CHARACTERS: usize = 120;

pub fn run(args: Args) -> Outcome {
    let gguf = load::gguf(&args.file)?;
    let digests = match args.digests {
        true => digests(&gguf)?,
        false => Vec::new(),
    };
    if args.json {
        print_json(&whole(&gguf, &digests)?)
    } else {
        show(&gguf, &digests)
    }
}

/// BLAKE3 of each tensor's bytes, in hexadecimal; computed by a GPU if there is one.
fn digests(gguf: &Gguf) -> Outcome<Vec<String>> {
    let context = CudaContext::auto()?;
    let mut bytes = Vec::new();
    let mut digests = Vec::new();
    for (index, tensor) in gguf.tensors().enumerate() {
        bytes.resize(tensor?.bytes as usize, 0_u8);
        gguf.read_tensor(index as u64, 0, &mut bytes)?;
        let digest = context.alloc_from(&bytes)?.digest(0..bytes.len())?;
        digests.push(digest.iter().map(|byte| format!("{byte:02x}")).collect());
    }
    Ok(digests)
}

/// Upper limits of tokens per second, for each GPU of this machine.
fn limits(bytes_per_token: u64) -> Vec<String> {
    let gpus = devices(Backend::Cuda).unwrap_or_default();
    gpus.iter()
        .filter_map(|caps| Machine::from_caps(caps).limit(bytes_per_token))
        .collect()
}

fn show(gguf: &Gguf, digests: &[String]) -> Outcome {
    let mut out = std::io::stdout().lock();
    let info = gguf.info();
    writeln!(
        out,
        "GGUF version {}, {} in {} file(s), {} metadata entries, {} tensors of {}",
        info.version,
        size::exact(info.file_bytes),
        info.split_count,
        info.metadata_count,
        info.tensor_count,
        size::exact(info.tensor_bytes)
    )?;
    writeln!(out, "\nmetadata")?;
    for entry in gguf.metadata() {
        let (key, value) = entry?;
        writeln!(out, "  {} = {}", one_line(key), shown(&value)?)?;
    }
    writeln!(out, "\ntensors")?;
    let mut formats: BTreeMap<String, (u64, u64)> = BTreeMap::new();
    for (index, tensor) in gguf.tensors().enumerate() {
        let tensor = tensor?;
        let format = format_name(tensor.type_id);
        let digest = digests
            .get(index)
            .map_or_else(String::new, |digest| format!("  {digest}"));
        let shape = tensor
            .dimensions
            .iter()
            .map(u64::to_string)
            .collect::<Vec<_>>()
            .join(" x ");
        writeln!(
            out,
            "  {:<40} {format:<8} {shape:<20} {:>16} bytes{digest}",
            one_line(tensor.name),
            size::count(tensor.bytes)
        )?;
        let sum = formats.entry(format).or_default();
        sum.0 += 1;
        sum.1 += tensor.bytes;
    }
    writeln!(out, "\nformats")?;
    for (format, (count, bytes)) in formats {
        let size = size::exact(bytes);
        writeln!(out, "  {format:<8} {count} tensors, {size}")?;
    }
    let bytes_per_token = machine::bytes_per_token(gguf)?;
    writeln!(
        out,
        "\nweights read per token: {}",
        size::exact(bytes_per_token)
    )?;
    for limit in limits(bytes_per_token) {
        writeln!(out, "  {limit}")?;
    }
    Ok(())
}

fn whole(gguf: &Gguf, digests: &[String]) -> Outcome<Json> {
    let mut metadata = Map::new();
    for entry in gguf.metadata() {
        let (key, value) = entry?;
        metadata.insert(key.into(), to_json(&value)?);
    }
    let tensors = gguf.tensors().enumerate().map(|(index, tensor)| {
        let tensor = tensor?;
        Ok(json!({
            "name": tensor.name,
            "type": format_name(tensor.type_id),
            "type_id": tensor.type_id,
            "dimensions": tensor.dimensions,
            "elements": tensor.element_count,
            "bytes": tensor.bytes,
            "part": tensor.split_index,
            "offset": tensor.file_offset,
            "blake3": digests.get(index),
        }))
    });
    let tensors = tensors.collect::<worker_cuda::Result<Vec<Json>>>()?;
    let info = gguf.info();
    Ok(json!({
        "version": info.version,
        "file_bytes": info.file_bytes,
        "tensor_bytes": info.tensor_bytes,
        "alignment": info.alignment,
        "parts": info.split_count,
        "bytes_per_token": machine::bytes_per_token(gguf)?,
        "metadata": metadata,
        "tensors": tensors,
    }))
}

/// The name of a tensor's format.
pub fn format_name(type_id: u32) -> String {
    tensor_type(type_id).map_or_else(|_| format!("type {type_id}"), |known| known.name.into())
}

fn shown(value: &Value<'_>) -> Outcome<String> {
    let Some(array) = value.as_array() else {
        return Ok(match value.as_str() {
            Some(text) => shortened(text),
            None => to_json(value)?.to_string(),
        });
    };
    let (len, kind) = (array.len(), array.element_type());
    if kind == ValueType::String {
        let first = array.strings_in(0..len.min(SHOWN_ELEMENTS))?;
        let texts: Vec<String> = first.iter().map(|text| format!("{text:?}")).collect();
        let more = if len > SHOWN_ELEMENTS { ", …" } else { "" };
        return Ok(format!(
            "{} strings [{}{more}]",
            size::count(len),
            texts.join(", ")
        ));
    }
    Ok(format!("{} of {kind:?}", size::count(len)))
}

fn shortened(text: &str) -> String {
    let line = one_line(text);
    match line.char_indices().nth(SHOWN_CHARACTERS) {
        Some((end, _)) => format!("{}… ({})", &line[..end], size::exact(text.len() as u64)),
        None => line,
    }
}

fn to_json(value: &Value<'_>) -> Outcome<Json> {
    if let Some(array) = value.as_array() {
        return array_to_json(&array);
    }
    Ok(if let Some(number) = value.as_u64() {
        number.into()
    } else if let Some(number) = value.as_i64() {
        number.into()
    } else if let Some(number) = value.as_f64() {
        float_to_json(number)
    } else if let Some(truth) = value.as_bool() {
        truth.into()
    } else {
        value.as_str().into()
    })
}

/// JSON has no infinity and no NaN; they become strings.
fn float_to_json(number: f64) -> Json {
    if number.is_finite() {
        number.into()
    } else {
        number.to_string().into()
    }
}

fn array_to_json(array: &Array<'_>) -> Outcome<Json> {
    Ok(match array.element_type() {
        ValueType::String => array.strings()?.into(),
        ValueType::Bool => array.bools()?.into(),
        ValueType::F32 => {
            let numbers = array.numbers::<f32>()?;
            numbers
                .into_iter()
                .map(|number| float_to_json(number.into()))
                .collect()
        }
        ValueType::F64 => array
            .numbers::<f64>()?
            .into_iter()
            .map(float_to_json)
            .collect(),
        ValueType::U64 => array.numbers::<u64>()?.into(),
        _ => array.integers()?.into(),
    })
}
