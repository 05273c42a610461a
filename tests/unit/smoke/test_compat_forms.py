"""torch's interface changed its forms; each surrogate here has only the names that its release has."""

from contextlib import nullcontext
from importlib import import_module
from types import SimpleNamespace
from typing import Any

import pytest

compat: Any = import_module("envkit.smoke.compat")


def switches(**names: Any) -> SimpleNamespace:
    return SimpleNamespace(**names)


def torch_1_8() -> SimpleNamespace:
    """Boolean switches only; autocast and GradScaler under torch.cuda.amp; TF32 on by default."""
    amp = switches(autocast=lambda enabled: ("cuda.amp.autocast", enabled), GradScaler=lambda **o: ("cuda.amp", o))
    backends = switches(cuda=switches(matmul=switches(allow_tf32=True)), cudnn=switches(allow_tf32=True))
    cuda = switches(amp=amp, get_device_capability=lambda _: (7, 5), is_bf16_supported=lambda: True)
    return switches(
        __version__="1.8.1+cu111", backends=backends, cuda=cuda, float16="half", bfloat16="bfloat", autograd=switches()
    )


def torch_2_2() -> SimpleNamespace:
    """set_float32_matmul_precision; torch.autocast; GradScaler still under torch.cuda.amp."""
    state = {"matmul": "highest"}
    old = torch_1_8()
    old.__version__ = "2.2.2"
    old.amp = switches()
    old.get_float32_matmul_precision = lambda: state["matmul"]
    old.set_float32_matmul_precision = lambda value: state.update(matmul=value)
    old.autocast = lambda kind, dtype, enabled: ("autocast", kind, dtype, enabled)
    return old


class Asserting(SimpleNamespace):
    """As torch.backends.cuda.matmul up to 1.13: it answers an unknown name with AssertionError."""

    def __getattr__(self, name: str) -> Any:
        raise AssertionError("Unknown attribute " + name)


def test_an_unknown_switch_that_asserts_is_an_absent_switch() -> None:
    torch = torch_1_8()
    torch.backends.cuda.matmul = Asserting(allow_tf32=True)
    with compat.fp32_precision(torch, "ieee", "ieee"):
        assert compat.fp32_settings(torch) == {"matmul": "ieee", "conv": "ieee"}
    assert torch.backends.cuda.matmul.allow_tf32 is True


def test_old_switches_are_set_and_put_back() -> None:
    torch = torch_1_8()
    with compat.fp32_precision(torch, "ieee", "ieee"):
        assert compat.fp32_settings(torch) == {"matmul": "ieee", "conv": "ieee"}
    assert compat.fp32_settings(torch) == {"matmul": "tf32", "conv": "tf32"}


def test_old_switches_are_put_back_after_an_exception() -> None:
    torch = torch_1_8()
    with pytest.raises(RuntimeError), compat.fp32_precision(torch, "ieee", "ieee"):
        raise RuntimeError
    assert torch.backends.cuda.matmul.allow_tf32 is True


def test_matmul_precision_word_is_used_where_it_exists() -> None:
    torch = torch_2_2()
    with compat.fp32_precision(torch, "tf32", "ieee"):
        assert torch.get_float32_matmul_precision() == "high"
        assert torch.backends.cudnn.allow_tf32 is False
    assert torch.get_float32_matmul_precision() == "highest"
    assert torch.backends.cudnn.allow_tf32 is True


def test_named_precision_never_touches_the_older_switches() -> None:
    def module(precision: str) -> SimpleNamespace:
        return switches(fp32_precision=precision)

    backends = switches(
        cuda=switches(matmul=module("none")),
        cudnn=switches(conv=module("tf32")),
        mkldnn=switches(matmul=module("none"), conv=module("none")),
    )
    torch = switches(__version__="2.15.0", backends=backends)
    with compat.fp32_precision(torch, "tf32", "ieee"):
        settings = compat.fp32_settings(torch)
        assert (settings["matmul"], settings["conv"], settings["cpu_matmul"]) == ("tf32", "ieee", "ieee")
    assert (backends.cuda.matmul.fp32_precision, backends.cudnn.conv.fp32_precision) == ("none", "tf32")


def test_autocast_forms() -> None:
    assert compat.autocast(torch_1_8(), "cuda:0", "half") == ("cuda.amp.autocast", True)
    assert compat.autocast(torch_2_2(), "cuda:0", "half") == ("autocast", "cuda", "half", True)


@pytest.mark.parametrize(("device", "dtype"), [("cpu", "bfloat"), ("cuda:0", "bfloat")])
def test_autocast_before_1_10_is_float16_on_cuda(device: str, dtype: str) -> None:
    with pytest.raises(NotImplementedError, match="float16 on CUDA only"):
        compat.autocast(torch_1_8(), device, dtype)


def test_cpu_autocast_to_float16_begins_with_2_3() -> None:
    with pytest.raises(NotImplementedError, match=r"torch 2\.3"):
        compat.autocast(torch_2_2(), "cpu", "half")


def test_grad_scaler_forms() -> None:
    assert compat.grad_scaler(torch_2_2(), "cuda:0", init_scale=2.0) == ("cuda.amp", {"init_scale": 2.0})
    newer = torch_2_2()
    newer.amp.GradScaler = lambda kind, **options: (kind, options)
    assert compat.grad_scaler(newer, "cpu", init_scale=2.0) == ("cpu", {"init_scale": 2.0})
    with pytest.raises(NotImplementedError, match=r"torch 2\.3"):
        compat.grad_scaler(torch_2_2(), "cpu")


def test_bfloat16_by_emulation_does_not_count() -> None:
    assert compat.bf16_native(torch_1_8(), "cuda:0") is False
    asked = torch_2_2()
    asked.cuda.is_bf16_supported = lambda including_emulation=True: including_emulation
    assert compat.bf16_native(asked, "cuda:0") is False
    assert compat.bf16_native(asked, "cpu") is True


def test_saved_tensors_before_1_10() -> None:
    with pytest.raises(NotImplementedError, match=r"torch 1\.10"):
        compat.saved_tensors_hooks(torch_1_8(), None, None)
    newer = torch_1_8()
    newer.autograd.graph = switches(saved_tensors_hooks=lambda _pack, _unpack: nullcontext())
    with compat.saved_tensors_hooks(newer, None, None):
        pass
