# Tokens that the sampler must draw. Sourced by ./dev oracle.
python_tools numpy 'numpy>=1.26,<3' 'gguf==0.19.0'
"$PYTHON" tools/golden/sampling.py cuda/tests/data/sampling.txt
