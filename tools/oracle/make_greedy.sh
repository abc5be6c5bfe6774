# Greedy answers compared with llama-cpp-python's (a table, nothing is written). Sourced by ./dev oracle.
python_tools llama-cpp 'gguf==0.19.0' 'llama-cpp-python==0.3.36'
step "worker" worker_release off
"$PYTHON" tools/oracle/greedy.py --worker "$TARGET/release/worker-orcd" --model "$DEMO_MODEL"
