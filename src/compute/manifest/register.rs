//! Registers the kernels of a manifest on a device.

use std::collections::HashMap;
use std::fmt;
use std::sync::Arc;

use super::{KernelCode, Manifest, ManifestModule, ModuleKind};
use crate::compute::module::CudaModule;
use crate::compute::program::CodeKind;
use crate::compute::{GpuCompute, HostBody, HostCall};
use crate::core::error::{Error, ErrorKind, Result};

/// The host functions for kernels of a manifest, by the names used in it.
#[derive(Default)]
pub struct HostFunctions(HashMap<String, Arc<HostBody>>);

impl HostFunctions {
    /// No functions.
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds a function. It does the work of all threads.
    #[must_use]
    pub fn with(
        mut self,
        name: impl Into<String>,
        body: impl Fn(&HostCall<'_>) -> Result<()> + Send + Sync + 'static,
    ) -> Self {
        self.0.insert(name.into(), Arc::new(Box::new(body)));
        self
    }
}

impl fmt::Debug for HostFunctions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_set().entries(self.0.keys()).finish()
    }
}

impl GpuCompute {
    /// Registers every kernel of a manifest, or none. Each module is read, checked against its digest and compiled or
    /// loaded once; on a host context modules are ignored, and every host function named in the manifest must be
    /// given. On CUDA, host functions are used by [`GpuCompute::check_parity`] and
    /// [`crate::Fallback::IfUnsupported`]. A kernel without code for this backend is listed but cannot run. Kernels
    /// of the same names are replaced.
    ///
    /// # Safety
    /// The device code conforms to the manifest: for any values of its scalars it accesses no memory outside the
    /// declared shapes, writes only parameters declared as written, and its parameters have the declared types.
    pub unsafe fn register_manifest(
        &self,
        manifest: &Manifest,
        hosts: &HostFunctions,
    ) -> Result<()> {
        self.check_ids(manifest)?;
        let mut modules: HashMap<usize, CudaModule> = HashMap::new();
        let mut prepared = Vec::new();
        for kernel in &manifest.kernels {
            let describe = |error: Error| error.with_context(format!("kernel '{}'", kernel.name));
            let KernelCode::Own {
                module,
                entry,
                host,
            } = &kernel.code
            else {
                continue;
            };
            let (mut code, mut body) = (None, None);
            if self.is_cuda()
                && let Some(index) = module
            {
                if !modules.contains_key(index) {
                    modules.insert(*index, self.load_module(manifest, *index)?);
                }
                code = modules.get(index);
            }
            if let Some(name) = host {
                match hosts.0.get(name).cloned() {
                    Some(function) => {
                        body = Some(Box::new(move |call: &HostCall<'_>| function(call)) as HostBody)
                    }
                    None if self.is_cuda() => {}
                    None => {
                        let message = format!("host function '{name}' is not given");
                        return Err(describe(Error::new(ErrorKind::NotFound, message)));
                    }
                }
            }
            prepared.push(
                self.prepare(&kernel.descriptor, entry, code, body)
                    .map_err(describe)?,
            );
        }
        for kernel in prepared {
            self.put(kernel)?;
        }
        for kernel in &manifest.kernels {
            if let KernelCode::Ready { name, elements } = &kernel.code {
                self.put_builtin(name, *elements, kernel.id.unwrap_or(0))?;
            }
        }
        Ok(())
    }

    /// Checks that no number belongs to a registered kernel of another name.
    fn check_ids(&self, manifest: &Manifest) -> Result<()> {
        let registered = self.registered()?;
        for kernel in &manifest.kernels {
            let other = registered
                .iter()
                .find(|other| Some(other.id) == kernel.id && other.name != kernel.name);
            if let Some(other) = other {
                let message = format!(
                    "kernel '{}': id {} is that of kernel '{}'",
                    kernel.name, other.id, other.name
                );
                return Err(Error::new(ErrorKind::InvalidArgument, message));
            }
        }
        Ok(())
    }

    fn load_module(&self, manifest: &Manifest, index: usize) -> Result<CudaModule> {
        let module = &manifest.modules[index];
        let describe = |error: Error| error.with_context(format!("module '{}'", module.name));
        let code = module.read(&manifest.folder).map_err(describe)?;
        if module.kind == ModuleKind::Cuda {
            let source = String::from_utf8(code).map_err(|_| {
                let message = "the source is not UTF-8";
                describe(Error::new(ErrorKind::Malformed, message))
            })?;
            let entries = entries_of(manifest, index);
            let program = module.configure(self.program(&module.name, &source, &entries));
            return self.load_program(program).map_err(describe);
        }
        check_kind(module, &code).map_err(describe)?;
        CudaModule::load(self.context(), &code).map_err(describe)
    }
}

/// The functions that the manifest's kernels need from a module, each once.
fn entries_of(manifest: &Manifest, index: usize) -> Vec<&str> {
    let mut entries: Vec<_> = manifest
        .kernels
        .iter()
        .filter_map(|kernel| match &kernel.code {
            KernelCode::Own { module, entry, .. } if *module == Some(index) => Some(entry.as_str()),
            _ => None,
        })
        .collect();
    entries.sort_unstable();
    entries.dedup();
    entries
}

/// Checks that the file is of the declared kind.
fn check_kind(module: &ManifestModule, code: &[u8]) -> Result<()> {
    let found = CodeKind::of(code)?;
    let is_right = matches!(
        (module.kind, found),
        (ModuleKind::Ptx, CodeKind::Ptx)
            | (ModuleKind::Cubin, CodeKind::Cubin)
            | (ModuleKind::Fatbin, CodeKind::Fatbin)
    );
    if is_right {
        return Ok(());
    }
    let message = format!("is {found:?}, the manifest says {:?}", module.kind);
    Err(Error::new(ErrorKind::Malformed, message))
}
