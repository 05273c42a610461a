"""Training steps with and without automatic mixed precision, and the differences between their results."""

import contextlib

from . import compat, precision, workloads

# The default scale of 65536 overflows in the first steps of small networks by design, and the scaler then skips these
# steps. With a lower scale the first step can be compared.
INIT_SCALE = 1024.0
LEARNING_RATE = 0.05  # large enough that ten steps change the loss


class Stepper:
    """One network with its optimizer in one precision: "fp32", "fp16" (with GradScaler) or "bf16".

    Raises NotImplementedError if this torch cannot autocast to that precision on the device.
    """

    def __init__(self, ctx, name, size, seed, kind):
        self.torch = ctx.torch
        self.device = ctx.device
        self.dtype = {"fp16": self.torch.float16, "bf16": self.torch.bfloat16}.get(kind)
        self.model, self.inputs, self.targets = workloads.build(ctx.torch, name, size, seed, ctx.device)
        self.optimizer = self.torch.optim.SGD(self.model.parameters(), lr=LEARNING_RATE)
        self.scaler = compat.grad_scaler(self.torch, ctx.device, init_scale=INIT_SCALE) if kind == "fp16" else None

    def loss(self):
        """Run the forward pass in this precision and return the loss tensor."""
        context = contextlib.nullcontext()
        if self.dtype is not None:
            context = compat.autocast(self.torch, self.device, self.dtype)
        with context:
            return self.torch.nn.functional.cross_entropy(self.model(self.inputs), self.targets)

    def step(self):
        """Run one training step and return the detached loss tensor."""
        self.optimizer.zero_grad(set_to_none=True)
        loss = self.loss()
        if self.scaler is None:
            loss.backward()
            self.optimizer.step()
        else:
            self.scaler.scale(loss).backward()
            self.scaler.step(self.optimizer)
            self.scaler.update()
        return loss.detach()

    def gradient(self):
        """Return the loss and the unscaled gradient of all parameters, a float64 vector on the device.

        The weights do not change.
        """
        self.optimizer.zero_grad(set_to_none=True)
        loss = self.loss()
        scale = 1.0 if self.scaler is None else INIT_SCALE
        (loss * scale).backward()
        parts = [p.grad.detach().double().reshape(-1) / scale for p in self.model.parameters()]
        return float(loss.detach()), self.torch.cat(parts)


def strict_fp32(ctx):
    """Return a context in which float32 is computed in full precision, without TF32: the baseline of comparisons."""
    return compat.fp32_precision(ctx.torch, "ieee", "ieee")


def compare(reference, candidate):
    """Return ``{loss_rel_err, grad_rel_l2, grad_one_minus_cos}`` of two ``gradient()`` results."""
    (loss_ref, grad_ref), (loss, grad) = reference, candidate
    norms = float(grad_ref.norm() * grad.norm())
    return {
        "loss_rel_err": abs(loss - loss_ref) / abs(loss_ref),
        "grad_rel_l2": precision.errors(grad, grad_ref)["rel_fro"],
        "grad_one_minus_cos": 1.0 - float(grad_ref @ grad) / norms if norms else None,
    }


def worst(rows):
    """Return the largest value of each key over all rows, None if any row has None."""
    return {key: None if any(row[key] is None for row in rows) else max(row[key] for row in rows) for key in rows[0]}


def saved_bytes(stepper):
    """Return the bytes that autograd keeps for the backward pass of one step, None before torch 1.10."""
    total = [0]

    def keep(tensor):
        total[0] += tensor.numel() * tensor.element_size()
        return tensor

    try:
        with compat.saved_tensors_hooks(stepper.torch, keep, lambda tensor: tensor):
            stepper.loss()
    except NotImplementedError:
        return None
    return total[0]
