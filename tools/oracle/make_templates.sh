# Chat templates as transformers renders them. Sourced by ./dev oracle.
python_tools templates 'gguf==0.19.0' 'transformers==5.23.0' 'jinja2==3.1.6' scikit-build-core
"$PYTHON" tools/golden/templates.py "$DEMO_MODEL"
# Published templates: the source package of llama-cpp-python carries models/templates of llama.cpp.
published=$CACHE/published-templates
if [ ! -d "$published/templates" ]; then
  mkdir -p "$published"
  "$PYTHON" -m pip download -q --no-deps --no-binary :all: --no-build-isolation -d "$published" 'llama-cpp-python==0.3.36'
  tar xzf "$published"/llama_cpp_python-*.tar.gz -C "$published" --strip-components=4 --wildcards '*/models/templates/*'
fi
"$PYTHON" tools/golden/published_templates.py "$published/templates" "$published/published.json"
WCUDA_PUBLISHED_TEMPLATES=$published/published.json cargo test --package worker-cuda --test text_templates published
