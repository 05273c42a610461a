"""C21: the speed of the installed JPEG decoders, and whether they agree."""

import importlib.util
import io

from envkit.smoke import noise, timing
from envkit.smoke.observation import Skip, control, ran

# (name, width, height): the usual size in ImageNet, and a larger one as from a camera.
SIZES = (("small", 500, 375), ("large", 1920, 1080))
QUALITY = 90  # as cameras save
BUDGETS_S = {"small": 1.0, "large": 1.5}
DIFFERENCE_LINE = 2  # levels of 255: rounding of a sound decoder
# An image with swapped colors differs by more levels on average, one compressed with QUALITY by far less.
ERROR_LINE = 24
SIDE = 224  # pixels, the usual size in trainings on ImageNet
# Images that DALI decodes at once on the GPU, because a single one does not keep it busy.
GPU_BATCH = 32


def run(ctx):
    """Return C21.small and C21.large: the time of each installed decoder, and the largest difference from Pillow."""
    if importlib.util.find_spec("PIL") is None:
        raise Skip("PILLOW_ABSENT", "this image has no Pillow to compare other decoders with")
    with timing.single_thread(ctx.seeded()):
        return [_size(ctx, *size) for size in SIZES]


def _size(ctx, name, width, height):
    from PIL import Image, features

    levels = _picture(ctx.torch, width, height)
    packed = _packed(Image, levels)
    decoders, absent = available(ctx.torch, on_gpu=ctx.has_cuda)
    pixels, broken = {}, {}
    for decoder, decode in list(decoders.items()):
        try:
            pixels[decoder] = decode(packed)
        except Exception as error:
            broken[decoder] = f"{type(error).__name__}: {error}"[:200]
            del decoders[decoder]
    reference = pixels["pillow"]
    transform = _transform(ctx.torch)
    variants = [(decoder, _call(getattr(decode, "batch", decode), packed)) for decoder, decode in decoders.items()]
    batches = {decoder: decode.size for decoder, decode in decoders.items() if hasattr(decode, "size")}
    variants.append(("transform", _call(transform, reference)))
    variants.append(("pillow_twice", _twice(decoders["pillow"], packed)))
    before = noise.snapshot()
    measured = timing.measure(variants, timing.wall_clock(), samples=9, warmup_cap_s=0.1, budget_s=BUDGETS_S[name])
    gate = noise.gate(before, noise.snapshot())
    times = {decoder: measured[decoder]["stats"]["median"] / batches.get(decoder, 1) for decoder in decoders}
    rest = measured["transform"]["stats"]["median"]
    observed = {
        "width": width,
        "height": height,
        "bytes": len(packed),
        "turbo": bool(features.check_feature("libjpeg_turbo")),
        "decode_ms": times,
        "speed_up": {decoder: times["pillow"] / took for decoder, took in times.items()},
        "largest_difference": {decoder: difference(result, reference) for decoder, result in pixels.items()},
        "mean_error": {decoder: mean_difference(result, levels) for decoder, result in pixels.items()},
        "transform_ms": rest,
        "decode_share": times["pillow"] / (times["pillow"] + rest),
        "starved_share": ctx.notes.get("starved_share"),
        "batches": batches,
        "absent": absent,
        "broken": broken,
    }
    shifted = reference.clone()
    shifted[height // 2, width // 2, 1] = (int(shifted[height // 2, width // 2, 1]) + 128) % 256
    noticed = difference(shifted, reference)
    ratio = measured["pillow_twice"]["stats"]["median"] / times["pillow"]
    turned = mean_difference(levels.flip(2), levels)
    controls = [
        control("swapped_colours_are_noticed", turned > ERROR_LINE, f"mean difference {turned:.1f}"),
        control("one_changed_level_is_noticed", noticed > DIFFERENCE_LINE, f"difference {noticed}"),
        control("two_pictures_take_longer", ratio > 1.4, f"two images take {ratio:.2f} times one"),
    ]
    item = measured["pillow"]
    return ran(f"C21.{name}", "cpu", observed, controls, samples=item["samples"], stats=item["stats"], noise=gate)


def _picture(torch, width, height):
    """Return an image with gradients, edges and some noise, because flat images decode faster than real ones."""
    across = torch.arange(width).float() / width
    down = (torch.arange(height).float() / height).unsqueeze(1)
    base = torch.stack([across + 0 * down, down + 0 * across, (8 * across).frac() * (6 * down).frac()], dim=2)
    grain = torch.randn(height, width, 1) * 0.06
    return ((base + grain).clamp(0, 1) * 255).to(torch.uint8)


def _packed(image_module, levels):
    buffer = io.BytesIO()
    height, width, _ = levels.shape
    image = image_module.frombytes("RGB", (width, height), bytes(levels.reshape(-1).tolist()))
    image.save(buffer, "JPEG", quality=QUALITY)
    return buffer.getvalue()


def available(torch, on_gpu=False):
    """Return ``({name: function from bytes to a (height, width, 3) uint8 tensor}, names that are not installed)``."""
    from PIL import Image

    from envkit.smoke import compat

    def pillow(packed):
        image = Image.open(io.BytesIO(packed)).convert("RGB")
        return compat.byte_tensor(torch, image.tobytes()).reshape(image.height, image.width, 3)

    decoders, absent = {"pillow": pillow}, []
    known = [
        ("simplejpeg", "simplejpeg", _simplejpeg),
        ("opencv", "cv2", _opencv),
        ("torchvision", "torchvision", _torchvision),
        ("dali", "nvidia.dali", lambda torch: Dali(torch, "cpu", 1)),
    ]
    if on_gpu:
        known.append(("dali_gpu", "nvidia.dali", lambda torch: Dali(torch, "mixed", GPU_BATCH)))
    for name, module, make in known:
        if not _installed(module):
            absent.append(name)
            continue
        try:
            decoders[name] = make(torch)
        except (ImportError, AttributeError, OSError, RuntimeError, TypeError, ValueError):
            absent.append(name)
    return decoders, absent


def _simplejpeg(torch):
    import simplejpeg

    return lambda packed: torch.from_numpy(simplejpeg.decode_jpeg(packed, fastdct=False, fastupsample=False))


def _opencv(torch):
    import cv2
    import numpy as np

    cv2.setNumThreads(1)

    def decode(packed):
        levels = cv2.imdecode(np.frombuffer(packed, np.uint8), cv2.IMREAD_COLOR)
        return torch.from_numpy(cv2.cvtColor(levels, cv2.COLOR_BGR2RGB))

    return decode


def _torchvision(torch):
    from torchvision.io import ImageReadMode, decode_jpeg

    from envkit.smoke import compat

    return lambda packed: decode_jpeg(compat.byte_tensor(torch, packed), ImageReadMode.RGB).permute(1, 2, 0)


class Dali:
    """NVIDIA DALI on one thread: one image at a time on the CPU, or a batch of the same image if ``kind`` is mixed."""

    def __init__(self, torch, kind, size):
        from nvidia.dali import fn, types
        from nvidia.dali.pipeline import Pipeline

        self.torch, self.kind, self.size = torch, kind, size
        options = {"exec_pipelined": False, "exec_async": False}
        device = 0 if kind == "mixed" else None
        self.pipeline = Pipeline(batch_size=size, num_threads=1, device_id=device, **options)
        with self.pipeline:
            packed = fn.external_source(name="packed")
            # Without fancy upsampling the GPU's pixels differ from those of all decoders on the CPU.
            images = fn.decoders.image(packed, device=kind, output_type=types.RGB, jpeg_fancy_upsampling=True)
            self.pipeline.set_outputs(images)
        self.pipeline.build()

    def batch(self, packed):
        """Decode the image ``size`` times and leave the results on their device."""
        import numpy as np

        self.pipeline.feed_input("packed", [np.frombuffer(packed, dtype=np.uint8)] * self.size)
        (images,) = self.pipeline.run()
        if self.kind == "mixed":
            self.torch.cuda.synchronize()
        return images

    def __call__(self, packed):
        """Return the pixels of one image on the CPU."""
        import numpy as np

        images = self.batch(packed)
        near = images.as_cpu() if self.kind == "mixed" else images
        return self.torch.from_numpy(np.array(near.at(0)))


def _installed(module):
    try:
        return importlib.util.find_spec(module) is not None
    except ModuleNotFoundError:  # of its parent package
        return False


def difference(left, right):
    """Return the largest difference of two images in levels of 256, or None if their shapes differ."""
    if left.shape != right.shape:
        return None
    return int((left.int() - right.int()).abs().max())


def mean_difference(left, right):
    """Return the mean difference of two images in levels of 256, or None if their shapes differ."""
    if left.shape != right.shape:
        return None
    return float((left.float() - right.float()).abs().mean())


def _transform(torch):
    """Return a function that does the rest of a loader's work: scale, convert to float, normalize."""

    def transform(pixels):
        image = pixels.permute(2, 0, 1).unsqueeze(0).float().div_(255.0)
        scaled = torch.nn.functional.interpolate(image, size=(SIDE, SIDE), mode="bilinear", align_corners=False)
        return (scaled - 0.45) / 0.225

    return transform


def _call(function, argument):
    return lambda: function(argument)


def _twice(function, argument):
    def both():
        function(argument)
        function(argument)

    return both
