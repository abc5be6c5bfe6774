"""Golden BLAKE3 digests for cuda/tests/data/blake3.txt, by the PyPI package `blake3` (the reference
implementation's). Input byte i is i % 251.

    pip install blake3 && python3 tools/oracle/blake3_vectors.py > cuda/tests/data/blake3.txt
"""

from blake3 import blake3

lengths = {0, 1, 2, 3, 4, 5, 31, 32, 33, 63, 64, 65, 127, 128, 129, 3072, 3073, 5119, 100000, 1000003}
for power in range(9, 21):
    lengths |= {2**power - 1, 2**power, 2**power + 1}
for chunks in (3, 5, 7, 31, 63, 64, 65, 127, 128, 129, 191, 192, 193, 511, 512, 513, 1000):
    lengths |= {chunks * 1024 - 1, chunks * 1024, chunks * 1024 + 1}

pattern = bytes(i % 251 for i in range(251)) * (max(lengths) // 251 + 1)
print("# BLAKE3 of the first n bytes of 0, 1, … 250, 0, 1, …; made by tools/oracle/blake3_vectors.py")
for length in sorted(lengths):
    print(length, blake3(pattern[:length]).hexdigest())
