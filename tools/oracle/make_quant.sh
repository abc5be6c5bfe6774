# Blocks of every weight format and what they stand for; the codebooks. Sourced by ./dev oracle.
python_tools llama-cpp 'gguf==0.19.0' 'llama-cpp-python==0.3.36'
"$PYTHON" tools/make_iq_tables.py
"$PYTHON" tools/golden/quant.py \
  --ggml "$("$PYTHON" -c 'import importlib.util as u; print(u.find_spec("llama_cpp").submodule_search_locations[0])')/lib/libggml-base.so"
