//! Converts the JSON document to modules and kernels.

use std::cell::OnceCell;
use std::collections::{HashMap, HashSet};
use std::path::{Path, PathBuf};

use super::node::{Document, Node, Object};
use super::{
    KernelCode, Manifest, ManifestKernel, ManifestModule, ModuleCode, ModuleKind, ModuleOptions,
    is_below,
};
use crate::compute::catalogue::BuiltinKernel;
use crate::compute::registry::{Descriptor, ParamSpec};
use crate::core::error::Result;
use crate::ffi;

const VERSION: u32 = 1;
/// Scalar types by name; the `WCUDA_ARG_…` of each is its index + 1.
pub(super) const TYPES: [&str; 12] = [
    "i8", "u8", "i16", "u16", "i32", "u32", "i64", "u64", "f16", "bf16", "f32", "f64",
];

pub(super) fn manifest(json: &[u8], folder: PathBuf) -> Result<Manifest> {
    let document = Document::new(json)?;
    let mut root = document
        .root()
        .object(&["manifest", "modules", "kernels"])?;
    let version = root.need("manifest")?;
    if version.u32()? != VERSION {
        return Err(version.error(format!("is not {VERSION}, the version this reads")));
    }
    let (mut modules, mut known) = (Vec::new(), Known::default());
    let nodes = root.take("modules").map(|node| node.array());
    for node in nodes.unwrap_or(Ok(Vec::new()))? {
        let module = module(&node)?;
        if known
            .modules
            .insert(module.name.clone(), modules.len())
            .is_some()
        {
            return Err(node.error(format!("'{}' is another module's name too", module.name)));
        }
        modules.push(module);
    }
    let (mut kernels, mut names, mut ids) = (Vec::new(), HashSet::new(), HashSet::new());
    for node in root.need("kernels")?.array()? {
        let kernel = kernel(&node, &known)?;
        if !names.insert(kernel.name.clone()) {
            return Err(node.error(format!("'{}' is another kernel's name too", kernel.name)));
        }
        if let Some(id) = kernel.id
            && !ids.insert(id)
        {
            return Err(node.error(format!("{id} is another kernel's id too")));
        }
        kernels.push(kernel);
    }
    Ok(Manifest {
        modules,
        kernels,
        folder,
    })
}

/// What the kernels of a manifest refer to.
#[derive(Default)]
struct Known {
    /// Modules by name.
    modules: HashMap<String, usize>,
    /// Listed once, and only if the manifest has a kernel of it.
    catalogue: OnceCell<Vec<BuiltinKernel>>,
}

fn module(node: &Node<'_>) -> Result<ManifestModule> {
    let mut fields = node.object(&[
        "name", "path", "source", "kind", "arch", "blake3", "options",
    ])?;
    let name = fields.need("name")?;
    let name_text = name.text()?;
    if name_text.is_empty() {
        return Err(name.error("is empty"));
    }
    let code = match (fields.take("path"), fields.take("source")) {
        (Some(path), None) => {
            let text = path.text()?;
            if !is_below(Path::new(&text)) {
                return Err(path.error("is not in the folder of the manifest or below it"));
            }
            ModuleCode::Path(text.into())
        }
        (None, Some(source)) => ModuleCode::Source(source.text()?),
        _ => return Err(node.error("has not one of 'path' and 'source'")),
    };
    const KINDS: [(&str, ModuleKind); 4] = [
        ("cuda", ModuleKind::Cuda),
        ("ptx", ModuleKind::Ptx),
        ("cubin", ModuleKind::Cubin),
        ("fatbin", ModuleKind::Fatbin),
    ];
    let kind = match fields.take("kind") {
        Some(kind) => KINDS[kind.choice(&KINDS.map(|(name, _)| name))?].1,
        None => ModuleKind::Cuda,
    };
    if kind != ModuleKind::Cuda
        && let Some(wrong) = fields.take("options")
    {
        return Err(wrong.error("only CUDA C++ has options"));
    }
    Ok(ManifestModule {
        name: name_text,
        code,
        kind,
        arch: fields.take("arch").map(|arch| arch.text()).transpose()?,
        blake3: fields.take("blake3").map(|hex| digest(&hex)).transpose()?,
        options: fields
            .take("options")
            .map_or(Ok(ModuleOptions::default()), |node| options(&node))?,
    })
}

fn digest(node: &Node<'_>) -> Result<[u8; 32]> {
    blake3::Hash::from_hex(node.text()?)
        .map(Into::into)
        .map_err(|_| node.error("is not 64 hex digits"))
}

fn options(node: &Node<'_>) -> Result<ModuleOptions> {
    let mut fields = node.object(&[
        "standard",
        "defines",
        "headers",
        "extras",
        "fast_math",
        "ftz",
        "prec_sqrt",
        "prec_div",
        "fmad",
        "line_info",
        "debug",
        "max_registers",
    ])?;
    let texts = |node: Option<Node<'_>>| -> Result<Vec<String>> {
        let items = node.map_or(Ok(Vec::new()), |node| node.array())?;
        items.iter().map(Node::text).collect()
    };
    let mut headers = Vec::new();
    for header in fields
        .take("headers")
        .map_or(Ok(Vec::new()), |node| node.array())?
    {
        let mut header = header.object(&["name", "text"])?;
        headers.push((header.need("name")?.text()?, header.need("text")?.text()?));
    }
    let mut truth = |name: &str| fields.take(name).map(|node| node.truth()).transpose();
    Ok(ModuleOptions {
        fast_math: truth("fast_math")?,
        ftz: truth("ftz")?,
        prec_sqrt: truth("prec_sqrt")?,
        prec_div: truth("prec_div")?,
        fmad: truth("fmad")?,
        line_info: truth("line_info")?,
        debug: truth("debug")?,
        standard: fields
            .take("standard")
            .map(|node| node.text())
            .transpose()?,
        defines: texts(fields.take("defines"))?,
        headers,
        extras: texts(fields.take("extras"))?,
        max_registers: fields
            .take("max_registers")
            .map(|node| node.u32())
            .transpose()?,
    })
}

const KERNEL_FIELDS: [&str; 14] = [
    "id",
    "name",
    "module",
    "entry",
    "host",
    "builtin",
    "type",
    "params",
    "grid",
    "block",
    "threads",
    "shared_bytes",
    "deterministic",
    "budget_ms",
];

fn kernel(node: &Node<'_>, known: &Known) -> Result<ManifestKernel> {
    let mut fields = node.object(&KERNEL_FIELDS)?;
    let name = fields.need("name")?.text()?;
    let id = match fields.take("id") {
        None => None,
        Some(id) => match id.u32()? {
            0 => return Err(id.error("is 0, at least 1")),
            number => Some(number),
        },
    };
    if fields.peek("builtin") {
        return builtin(node, fields, (name, id), known);
    }
    let is_deterministic = fields
        .take("deterministic")
        .map_or(Ok(true), |node| node.truth())?;
    let mut module_name = None;
    let mut module = None;
    if let Some(node) = fields.take("module") {
        let text = node.text()?;
        let index = known
            .modules
            .get(&text)
            .ok_or_else(|| node.error("there is no such module"))?;
        (module_name, module) = (Some(text), Some(*index));
    }
    let host = fields.take("host").map(|node| node.text()).transpose()?;
    if module.is_none() && host.is_none() {
        return Err(node.error("has neither 'module' nor 'host' nor 'builtin'"));
    }
    let entry = match fields.take("entry") {
        Some(entry) if module.is_none() => return Err(entry.error("is of no module")),
        Some(entry) => entry.text()?,
        None => name.clone(),
    };
    if let Some(kind) = fields.take("type") {
        return Err(kind.error("only a kernel of the catalogue has one"));
    }
    let expression = |node: Option<Node<'_>>| node.map_or(Ok(String::new()), |n| n.expression());
    let mut params = Vec::new();
    for param in fields
        .take("params")
        .map_or(Ok(Vec::new()), |node| node.array())?
    {
        params.push(self::param(&param)?);
    }
    let descriptor = Descriptor {
        id: id.unwrap_or(0),
        flags: if is_deterministic {
            0
        } else {
            ffi::WCUDA_KERNEL_NON_DETERMINISTIC
        },
        budget_ms: fields.take("budget_ms").map_or(Ok(0), |node| node.u32())?,
        name: name.clone(),
        params,
        grid: three(fields.take("grid"))?,
        block: three(fields.take("block"))?,
        threads: expression(fields.take("threads"))?,
        shared_bytes: expression(fields.take("shared_bytes"))?,
        module: module_name.clone().unwrap_or_default(),
    };
    let (signature, sig_hash) = descriptor.check().map_err(|error| {
        let (field, what) = error
            .message()
            .split_once(": ")
            .unwrap_or(("", error.message()));
        let field = field.replace("parameters[", "params["); // the manifest's name
        node.clone().follow(&field).error(what)
    })?;
    if let Some(id) = id
        && id <= 2
    {
        return Err(node.error(format!("id {id} is that of a kernel of the catalogue")));
    }
    Ok(ManifestKernel {
        id,
        name,
        module: module_name,
        host: host.clone(),
        signature,
        sig_hash,
        is_deterministic,
        budget_ms: descriptor.budget_ms,
        code: KernelCode::Own {
            module,
            entry,
            host,
        },
        descriptor,
    })
}

/// A kernel of the catalogue: its name, and at most a type and an id.
fn builtin(
    node: &Node<'_>,
    mut fields: Object<'_>,
    (name, id): (String, Option<u32>),
    known: &Known,
) -> Result<ManifestKernel> {
    let builtin = fields.need("builtin")?;
    let of_catalogue = builtin.text()?;
    let kernels = match known.catalogue.get() {
        Some(kernels) => kernels,
        None => {
            let kernels = crate::compute::catalogue::catalogue()?;
            known.catalogue.get_or_init(|| kernels)
        }
    };
    let Some(found) = kernels.iter().find(|kernel| kernel.name == of_catalogue) else {
        return Err(builtin.error("is not in the catalogue"));
    };
    if of_catalogue != name {
        return Err(builtin.error("a kernel of the catalogue keeps its name"));
    }
    const ELEMENTS: [(&str, i32); 3] = [
        ("f32", ffi::WCUDA_ARG_F32),
        ("f16", ffi::WCUDA_ARG_F16),
        ("bf16", ffi::WCUDA_ARG_BF16),
    ];
    let elements = match fields.take("type") {
        Some(kind) => {
            let elements = ELEMENTS[kind.choice(&ELEMENTS.map(|(name, _)| name))?].1;
            if found.is_f32_only && elements != ffi::WCUDA_ARG_F32 {
                return Err(kind.error("the kernel is for f32 only"));
            }
            elements
        }
        None => ffi::WCUDA_ARG_F32,
    };
    let own = match (of_catalogue.as_str(), elements) {
        ("noop", _) => Some(1),
        ("tensor_add", ffi::WCUDA_ARG_F32) => Some(2),
        _ => None,
    };
    if let Some(id) = id
        && (own.is_some_and(|own| own != id) || (own.is_none() && id <= 2))
    {
        return Err(node.error(format!("id {id} is not that of '{name}'")));
    }
    if let Some(other) = fields.any() {
        return Err(
            other.error("a kernel of the catalogue has only 'name', 'builtin', 'type', 'id'")
        );
    }
    Ok(ManifestKernel {
        id: id.or(own),
        name,
        module: None,
        host: None,
        signature: String::new(),
        sig_hash: 0,
        is_deterministic: true,
        budget_ms: 0,
        code: KernelCode::Ready {
            name: of_catalogue,
            elements,
        },
        descriptor: Descriptor::default(),
    })
}

/// One to three expressions.
fn three(node: Option<Node<'_>>) -> Result<[String; 3]> {
    let mut result = [const { String::new() }; 3];
    let Some(node) = node else { return Ok(result) };
    if !node.is_array() {
        result[0] = node.expression()?;
        return Ok(result);
    }
    let items = node.array()?;
    if items.is_empty() || items.len() > 3 {
        return Err(node.error(format!("has {} dimensions, 1 to 3", items.len())));
    }
    for (into, item) in result.iter_mut().zip(&items) {
        *into = item.expression()?;
    }
    Ok(result)
}

fn param(node: &Node<'_>) -> Result<ParamSpec> {
    let mut fields = node.object(&[
        "name",
        "kind",
        "dtype",
        "shape",
        "access",
        "layout",
        "layout_id",
        "bytes",
        "min",
        "max",
    ])?;
    let mut param = ParamSpec {
        name: fields.need("name")?.text()?,
        ..ParamSpec::default()
    };
    match fields
        .need("kind")?
        .choice(&["buffer", "scalar", "bytes"])?
    {
        0 => {
            param.kind = ffi::WCUDA_ARG_BUFFER;
            param.dtype = dtype(&mut fields)?;
            let shape = fields.need("shape")?.array()?;
            let shape: Vec<_> = shape.iter().map(Node::expression).collect::<Result<_>>()?;
            param.shape = shape.join(",");
            let access = fields
                .take("access")
                .map_or(Ok(2), |node| node.choice(&["read", "write", "read_write"]))?;
            param.access = access as u32 + 1; // WCUDA_ACCESS_READ, _WRITE, both
            if let Some(layout) = fields.take("layout") {
                param.layout = layout.choice(&["any", "row_major", "column_major"])? as i32;
            }
        }
        1 => {
            param.kind = dtype(&mut fields)?;
            param.min = fields
                .take("min")
                .map_or(Ok(String::new()), |node| node.bound())?;
            param.max = fields
                .take("max")
                .map_or(Ok(String::new()), |node| node.bound())?;
        }
        _ => {
            param.kind = ffi::WCUDA_ARG_BYTES;
            param.shape = fields.need("bytes")?.u32()?.to_string();
        }
    }
    if param.kind == ffi::WCUDA_ARG_BUFFER || param.kind == ffi::WCUDA_ARG_BYTES {
        param.layout_id = fields.take("layout_id").map_or(Ok(0), |node| node.u32())?;
    }
    match fields.any() {
        Some(other) => Err(other.error("has no meaning for this kind")),
        None => Ok(param),
    }
}

fn dtype(fields: &mut Object<'_>) -> Result<i32> {
    Ok(fields.need("dtype")?.choice(&TYPES)? as i32 + 1)
}
