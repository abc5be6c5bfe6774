"""Binds the functions of libworker_cuda_compat.a by name: compat_ctypes.py SHARED_OBJECT MODEL."""

import ctypes as c
import sys

NAMES = [
    "cuda_init", "cuda_destroy", "cuda_get_device_count", "cuda_load_model", "cuda_unload_model",
    "cuda_model_get_vram_usage", "cuda_get_vram_usage", "cuda_inference_start", "cuda_inference_next_token",
    "cuda_inference_free", "cuda_check_vram_residency", "cuda_get_process_vram_usage",
    "cuda_check_device_health", "cuda_error_message",
    "vram_malloc", "vram_free", "vram_memcpy_h2d", "vram_memcpy_d2h", "vram_get_info", "vram_set_device",
    "vram_get_device_count", "vram_reset_mock_state",
]  # fmt: skip
SUCCESS, DEVICE_NOT_FOUND, VRAM_DRIVER = 0, 1, 4


def main(path: str, model_path: str) -> None:
    library = c.CDLL(path)
    for name in NAMES:
        getattr(library, name)
    for name in ("cuda_init", "cuda_load_model"):
        getattr(library, name).restype = c.c_void_p
    library.cuda_get_vram_usage.restype = c.c_uint64
    library.cuda_error_message.restype = c.c_char_p
    library.cuda_check_device_health.restype = c.c_bool
    code = c.c_int(-1)

    # Without a device nothing computes on the CPU until it is requested.
    if library.cuda_get_device_count() == 0:
        assert library.cuda_init(0, c.byref(code)) is None
        assert code.value == DEVICE_NOT_FOUND, code.value
        address = c.c_void_p(7)
        assert library.vram_malloc(c.byref(address), c.c_size_t(64)) == VRAM_DRIVER
        assert not address.value

    library.wcuda_compat_use_host(1)
    assert library.cuda_get_device_count() == 1
    context = c.c_void_p(library.cuda_init(0, c.byref(code)))
    assert context.value and code.value == SUCCESS, library.cuda_error_message(code)
    assert library.cuda_check_device_health(context, c.byref(code))
    used = c.c_uint64(0)
    model = c.c_void_p(
        library.cuda_load_model(context, model_path.encode(), c.byref(used), c.byref(code))
    )
    assert model.value and used.value > 0, library.cuda_error_message(code)
    assert library.cuda_get_vram_usage(model) == used.value
    library.cuda_unload_model(model)
    library.cuda_destroy(context)

    sent, back = (c.c_uint8 * 64)(*range(64)), (c.c_uint8 * 64)()
    address = c.c_void_p()
    assert library.vram_malloc(c.byref(address), c.c_size_t(64)) == SUCCESS
    assert library.vram_memcpy_h2d(address, sent, c.c_size_t(64)) == SUCCESS
    assert library.vram_memcpy_d2h(back, address, c.c_size_t(64)) == SUCCESS
    assert bytes(back) == bytes(sent)
    assert library.vram_free(address) == SUCCESS
    library.vram_reset_mock_state()


if __name__ == "__main__":
    main(*sys.argv[1:])
