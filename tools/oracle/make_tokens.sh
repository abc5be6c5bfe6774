# Token ids of the fidelity texts, and how far llama-cpp-python is from forward.py on them (printed; the
# figures are in docs/NUMERICS.md). Sourced by ./dev oracle.
python_tools llama-cpp 'gguf==0.19.0' 'llama-cpp-python==0.3.36'
"$PYTHON" tools/oracle/fidelity.py tokens --model "$DEMO_MODEL"
"$PYTHON" tools/oracle/fidelity.py peer --model "$DEMO_MODEL"
