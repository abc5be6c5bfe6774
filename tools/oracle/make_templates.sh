# Chat templates as transformers renders them. Sourced by ./dev oracle.
python_tools templates 'gguf==0.19.0' 'transformers==5.23.0' 'jinja2==3.1.6'
"$PYTHON" tools/golden/templates.py "$DEMO_MODEL"
