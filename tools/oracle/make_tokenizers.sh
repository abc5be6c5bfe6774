# Ids and words of the reference tokenizers. Sourced by ./dev oracle.
python_tools tokenizers 'gguf==0.19.0' 'llama-cpp-python==0.3.36' 'mistral-common==1.13.1' 'sentencepiece==0.2.3' \
  'dashscope==2.0.2' 'tiktoken==0.14.0' regex
"$PYTHON" tools/golden/tokens.py "$DEMO_MODEL"
python_tools tokenizer-kinds 'sentencepiece==0.2.3' 'tokenizers==0.23.3' protobuf
"$PYTHON" tools/golden/tokenizer_kinds.py
