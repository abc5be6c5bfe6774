# BLAKE3 of many lengths by the reference implementation. Sourced by ./dev oracle.
python_tools blake3 'blake3==1.0.5'
"$PYTHON" tools/oracle/blake3_vectors.py >cuda/tests/data/blake3.txt
