"""Golden vectors of neural_forward by PyTorch in double precision: 100 -> 64 -> 32 -> 16 -> 5, ReLU between
the layers, softmax after the last. Writes tests/data/neural_forward.bin, all little-endian f32: x (7, 100);
of each layer weights (inputs, outputs), then bias; probabilities (7, 5).

Weights are uniform within sqrt(2 / inputs), as the classifier that this comes from begins.
"""

import pathlib
import sys

import torch

SIZES = [100, 64, 32, 16, 5]
BATCH = 7


def main():
    torch.manual_seed(20261121)
    x = torch.randn(BATCH, SIZES[0], dtype=torch.float32)
    data, layers = [x], []
    for inputs, outputs in zip(SIZES, SIZES[1:]):
        layer = torch.nn.Linear(inputs, outputs, dtype=torch.float32)
        torch.nn.init.uniform_(layer.weight, -((2 / inputs) ** 0.5), (2 / inputs) ** 0.5)
        torch.nn.init.uniform_(layer.bias, -0.1, 0.1)
        data += [layer.weight.detach().T.contiguous(), layer.bias.detach()]
        layers += [layer.double(), torch.nn.ReLU()]
    network = torch.nn.Sequential(*layers[:-1], torch.nn.Softmax(dim=-1))
    with torch.no_grad():
        data.append(network(x.double()))
    root = pathlib.Path(__file__).parents[2]
    path = pathlib.Path(sys.argv[1]) if len(sys.argv) > 1 else root / "tests/data/neural_forward.bin"
    path.write_bytes(b"".join(each.to(torch.float32).numpy().astype("<f4").tobytes() for each in data))
    print(f"torch {torch.__version__}, {path.stat().st_size} bytes")


if __name__ == "__main__":
    main()
