# How close the engine's logits are to those of a forward pass in f32 numpy; bounds: docs/NUMERICS.md.

fidelity_steps() {
  local worker=$TARGET/cuda/worker-orcd
  step_unless_unchanged "fidelity on 2048 positions" \
    "$(fingerprint "$worker" "$DEMO_MODEL" tests/data/fidelity tools/oracle)" fidelity "$worker"
}

fidelity() {
  local logits=$TARGET/fidelity/engine.f32 reference
  reference=$TARGET/fidelity/$(fingerprint "$DEMO_MODEL" tests/data/fidelity tools/oracle/*.py).npy
  mkdir -p "$TARGET/fidelity"
  [ -e "$reference" ] || rm -f "$TARGET"/fidelity/*.npy # of other texts
  need_numpy
  "$1" logits --backend host --model "$DEMO_MODEL" --tokens tests/data/fidelity/tokens.json --out "$logits"
  "$PYTHON" tools/oracle/fidelity.py compare --model "$DEMO_MODEL" --logits "$logits" \
    --reference "$reference" --max-kl 3e-4 --min-top1 99
  rm "$logits"
}
