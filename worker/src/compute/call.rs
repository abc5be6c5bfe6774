//! A kernel's parameters, and the sizes that follow from options and arrays.

use std::collections::BTreeMap;
use std::fmt;

use worker_cuda::BuiltinKernel;
use worker_cuda::manifest::{ManifestKernel, ParamKind};

use crate::failure::{Failure, Outcome};
use crate::npy::Array;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    /// Read from a file.
    Read,
    /// Written to a file.
    Write,
    /// Both.
    Update,
    /// An integer.
    Integer,
    /// A floating-point number.
    Number,
    /// Bytes by value.
    Bytes,
}

#[derive(Clone, Debug)]
pub struct Param {
    pub name: String,
    pub role: Role,
    /// The type in files: "f32".
    pub dtype: String,
    /// Names, numbers or expressions.
    pub shape: Vec<String>,
}

impl Role {
    pub fn name(self) -> &'static str {
        match self {
            Self::Read => "in",
            Self::Write => "out",
            Self::Update => "in-out",
            Self::Integer => "integer",
            Self::Number => "number",
            Self::Bytes => "bytes",
        }
    }
}

/// "in x: f32[rows, width]", "eps: f32"; the type is left out if it is empty.
impl fmt::Display for Param {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if matches!(self.role, Role::Read | Role::Write | Role::Update) {
            write!(f, "{} ", self.role.name())?;
        }
        write!(f, "{}", self.name)?;
        if !self.dtype.is_empty() {
            write!(f, ": {}", self.dtype)?;
        }
        if !self.shape.is_empty() {
            write!(f, "[{}]", self.shape.join(", "))?;
        }
        Ok(())
    }
}

/// Parameters of a kernel of the catalogue, from its signature (`x: read T[rows*width], rows: i64`).
/// `elements` is the element type of the call, as in files.
pub fn of_builtin(kernel: &BuiltinKernel, elements: &str) -> Vec<Param> {
    let params = kernel.signature.split(", ");
    params.filter_map(|text| builtin(text, elements)).collect()
}

fn builtin(text: &str, elements: &str) -> Option<Param> {
    let (name, rest) = text.split_once(": ")?;
    let param = |role, dtype: &str, shape| Param {
        name: name.to_owned(),
        role,
        dtype: dtype.to_owned(),
        shape,
    };
    let Some((rest, shape)) = rest.strip_suffix(']').and_then(|rest| rest.split_once('[')) else {
        let role = if rest == "f32" {
            Role::Number
        } else {
            Role::Integer
        };
        return Some(param(role, rest, Vec::new()));
    };
    let (access, dtype) = rest.rsplit_once(' ')?;
    let role = match access {
        "read" => Role::Read,
        "write" => Role::Write,
        _ => Role::Update,
    };
    // Sizes::add_output_size computes these two.
    let shape = shape
        .replace("((h+2*pad-kh)/stride+1)", "oh")
        .replace("((w+2*pad-kw)/stride+1)", "ow");
    let shape = shape.split('*').map(str::to_owned).collect();
    let dtype = if dtype == "T" { elements } else { dtype };
    Some(param(role, dtype, shape))
}

/// Parameters of a kernel of a manifest.
pub fn of_manifest(kernel: &ManifestKernel) -> Vec<Param> {
    let role = |param: &worker_cuda::manifest::ManifestParam| match param.kind {
        ParamKind::Buffer if !param.is_written => Role::Read,
        ParamKind::Buffer if !param.is_read => Role::Write,
        ParamKind::Buffer => Role::Update,
        ParamKind::Bytes => Role::Bytes,
        _ if param.dtype.starts_with(['i', 'u']) => Role::Integer,
        _ => Role::Number,
    };
    kernel
        .params()
        .iter()
        .map(|param| Param {
            name: param.name.clone(),
            role: role(param),
            // NumPy has no bf16; files hold its bits.
            dtype: param.dtype.replace("bf16", "u16"),
            shape: param.shape.clone(),
        })
        .collect()
}

/// Integers by name, from options and from the shapes of the input arrays.
#[derive(Debug, Default)]
pub struct Sizes(BTreeMap<String, u64>);

impl Sizes {
    pub fn set(&mut self, name: &str, value: u64) {
        self.0.insert(name.to_owned(), value);
    }

    pub fn get(&self, name: &str) -> Option<u64> {
        self.0.get(name).copied()
    }

    /// Takes sizes from an array's shape: one per dimension, or one for the element count.
    pub fn learn(&mut self, param: &Param, array: &Array) {
        let is_name = |dim: &String| !dim.starts_with(|c: char| c.is_ascii_digit());
        if array.shape.len() == param.shape.len() {
            for (dim, size) in param.shape.iter().zip(&array.shape) {
                if is_name(dim) {
                    self.0.entry(dim.clone()).or_insert(*size);
                }
            }
        } else if let [dim] = &param.shape[..]
            && is_name(dim)
        {
            let count = array.shape.iter().product();
            self.0.entry(dim.clone()).or_insert(count);
        }
    }

    /// The output size of windows of kh x kw over h x w, if the kernel has them.
    pub fn add_output_size(&mut self) {
        let size = |of: &str, window: &str| {
            let (length, width) = (self.get(of)?, self.get(window)?);
            let (stride, pad) = (self.get("stride")?, self.get("pad")?);
            let room = pad
                .checked_mul(2)?
                .checked_add(length)?
                .checked_sub(width)?;
            room.checked_div(stride)?.checked_add(1)
        };
        let found = [("oh", size("h", "kh")), ("ow", size("w", "kw"))];
        for (name, value) in found {
            if let Some(value) = value {
                self.0.insert(name.to_owned(), value);
            }
        }
    }

    /// The shape of a parameter as numbers.
    pub fn shape(&self, param: &Param) -> Outcome<Vec<u64>> {
        let known = |dim: &String| {
            let number = dim.parse().ok().or_else(|| self.get(dim));
            number.ok_or_else(|| {
                Failure::usage(format!(
                    "the size '{dim}' of '{}' is unknown; pass --arg {dim}=NUMBER or --shape {}=SIZES",
                    param.name, param.name
                ))
            })
        };
        param.shape.iter().map(known).collect()
    }
}
