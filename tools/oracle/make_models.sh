# Tiny models of each family with the logits of transformers, hidden states of a numpy forward pass, and draft heads
# with the logits and drafts of one. Sourced by ./dev oracle.
need gcc=gcc nm=binutils
# torch without its dependencies: PyPI's build asks for 3 GB of CUDA libraries that nothing here uses.
python_tools torch 'gguf==0.19.0' 'transformers==5.23.0' sympy networkx fsspec jinja2
python_tools torch --no-deps 'torch==2.15.0'
TORCH=$("$PYTHON" -c 'import importlib.util as u; print(u.find_spec("torch").submodule_search_locations[0])')
"$PYTHON" tools/oracle/torch_stubs.py "$TORCH/lib" "$CACHE/torch-stubs"
LD_LIBRARY_PATH=$CACHE/torch-stubs "$PYTHON" tools/oracle/tiny_models.py
"$PYTHON" tools/oracle/test_forward.py --write
"$PYTHON" tools/oracle/tiny_heads.py
